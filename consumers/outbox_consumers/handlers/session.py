"""One session with PostgreSQL: opened, checked, guarded, and its commits proven."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg
from psycopg import conninfo, pq
from psycopg.rows import dict_row

from outbox_connectors.definition import Secret
from outbox_connectors.keepalive import kept_alive
from outbox_connectors.pooler import shares_sessions
from outbox_connectors.refused_connection import unreachable
from outbox_consumers import sql
from outbox_consumers.errors import (
    InboxUnusable,
    ReadOnlyDatabase,
    SharedSession,
    SwallowedDatabaseError,
    UnprovenTransaction,
    Unreachable,
    UsageError,
)
from outbox_consumers.handlers.connection import HandlerConnection, HandlerCursor, not_yours
from outbox_consumers.inbox.claims import cursor_of, inbox_missing

log = logging.getLogger("outbox_consumers")

Status: Final = pq.TransactionStatus


@dataclass(frozen=True, slots=True)
class Database:
    """Where a consumer's effects go, and how long its session may hold others up (seconds).

    Behind a `pooler` that lends a server connection for one transaction nothing may be left in the session:
    what is told a session once is then told each transaction, and no statement is prepared.
    """

    dsn: Secret
    consumer: str
    table: str
    lock_timeout: float = 10.0
    idle_timeout: float = 60.0
    connect_timeout: float = 5.0
    pooler: bool = False

    def begin(self, cursor: psycopg.Cursor[Any]) -> None:
        """Begin a transaction that has our time-outs and a commit that is on disk."""
        if not self.pooler:
            cursor.execute("BEGIN")
            return
        cursor.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        cursor.execute(sql.get("set_transaction"), self.timeouts)

    @property
    def timeouts(self) -> dict[str, str]:
        """The time-outs as PostgreSQL reads them."""
        return {
            "lock_timeout": f"{round(self.lock_timeout * 1000)}ms",
            "idle_timeout": f"{round(self.idle_timeout * 1000)}ms",
        }


class ConsumerSession:
    """A connection for as long as it lives, and a new one afterwards. Used by one thread."""

    def __init__(
        self, database: Database, on_connect: Callable[[HandlerConnection], None] | None = None
    ) -> None:
        self._database = database
        self._on_connect = on_connect
        self._conn: HandlerConnection | None = None

    def open(self) -> None:
        """Connect and check that effects can be written here.

        Raises Unreachable, ReadOnlyDatabase or InboxUnusable.
        """
        try:
            self.connection()
        except psycopg.OperationalError as error:
            raise _unreachable(error) from error

    def connection(self) -> HandlerConnection:
        """Give the open connection; open one where there is none or it is broken.

        Raises psycopg.OperationalError while the server cannot be reached.
        """
        if self._conn is None or self._conn.closed:
            self._conn = _connect(self._database)
            if self._on_connect is not None:
                self._on_connect(self._conn)
        return self._conn

    def begin(self) -> psycopg.Cursor[Any]:
        """Begin a transaction and give a cursor of our own in it."""
        cursor = cursor_of(self.connection())
        self._database.begin(cursor)
        return cursor

    def usable(self) -> bool:
        """Say whether there is a connection that is not known to be broken."""
        return self._conn is not None and not self._conn.closed

    def status(self) -> pq.TransactionStatus:
        """Say in which state the transaction is; UNKNOWN without a connection."""
        return Status.UNKNOWN if self._conn is None else Status(self._conn.pgconn.transaction_status)

    def commit(self) -> None:
        """Commit and prove it; when this returns, the effects are on disk.

        The state before COMMIT must be INTRANS: INERROR means a database error that somebody caught, and
        PostgreSQL would answer COMMIT with a ROLLBACK that psycopg does not report; IDLE means that the
        transaction is over already. Afterwards the command tag must be COMMIT.
        Raises SwallowedDatabaseError, TransactionEndedByHandler or UnprovenTransaction.
        """
        status = self.status()
        if status == Status.INERROR:
            raise SwallowedDatabaseError(
                "a handler caught a database error and returned, so PostgreSQL would roll everything back",
                remedy="let the error out, or wrap the statement in `with conn.transaction():`",
            )
        if status == Status.IDLE:
            raise not_yours()
        if status != Status.INTRANS or self._conn is None:
            raise psycopg.OperationalError(f"the connection is {status.name} before COMMIT")
        cursor = cursor_of(self._conn)
        cursor.execute("COMMIT")
        if cursor.statusmessage != "COMMIT":
            raise UnprovenTransaction(f"PostgreSQL answered COMMIT with {cursor.statusmessage}")

    def rollback(self) -> None:
        """Roll back whatever is open; a connection that cannot do so is closed. Never raises.

        After an error psycopg does it, which also forgets what it has prepared. A pipeline that broke off
        may not have prepared what psycopg believes it has (3.3: a statement that is due for preparing
        behind the failing one), and the name would fail in every transaction from then on.
        """
        status = self.status()
        if status == Status.IDLE or self._conn is None:
            return
        try:
            if status == Status.INERROR:
                psycopg.Connection.rollback(self._conn)
            elif status == Status.INTRANS:
                cursor_of(self._conn).execute("ROLLBACK")  # nothing failed: what is prepared stays so
            else:
                raise psycopg.OperationalError(f"the connection is left {status.name}")
        except psycopg.Error as error:
            log.warning("closing the database connection: %s", error)
            self.close()

    def close(self) -> None:
        """Close the connection; what was not committed is rolled back by the server."""
        if self._conn is not None:
            self._conn.close()
            self._conn = None


def located(database: Database) -> Database:
    """Name the inbox with the schema in which a new session finds it.

    A handler may change search_path, for its transaction or for good (one schema for each tenant); the inbox
    stays where it is. Connects only where the schema is not named already. Raises what `ConsumerSession.open`
    raises.
    """
    if "." in database.table:
        return database
    session = ConsumerSession(database)
    try:
        session.open()
        wanted = {"table": sql.table(database.table).as_string(None)}
        found = cursor_of(session.connection()).execute(sql.get("find_schema"), wanted).fetchone()
    except psycopg.OperationalError as error:
        raise _unreachable(error) from error
    finally:
        session.close()
    if found is None or "." in found[0]:
        return database
    return replace(database, table=f"{found[0]}.{database.table}")


def _unreachable(error: psycopg.OperationalError) -> Unreachable:
    return unreachable(
        str(error),
        "PostgreSQL",
        dsn="the dsn",
        database="the dsn",
        otherwise="check the dsn (or PGHOST, PGPORT, ...)",
    )


def _connect(database: Database) -> HandlerConnection:
    settings = conninfo_of(database.dsn)
    settings.setdefault("connect_timeout", str(int(database.connect_timeout)))
    settings["application_name"] = f"outbox consumer {database.consumer}"[:63]
    conn = HandlerConnection.connect("", autocommit=True, cursor_factory=HandlerCursor, **settings)
    if database.pooler:
        conn.prepare_threshold = None
    try:
        if not database.pooler:
            refuse_pooler(conn, settings)
        _check(conn, database)
    except BaseException:
        conn.close()
        raise
    return conn


def refuse_pooler(conn: psycopg.Connection[Any], settings: dict[str, Any]) -> None:
    """Raise SharedSession behind a transaction pooler, before anything is set there. Raises psycopg.Error."""
    if shares_sessions(conn, lambda: psycopg.connect("", autocommit=True, **settings)):
        raise SharedSession(
            "the dsn leads to a pooler that lends its server sessions to others between transactions",
            remedy="say Consumer(..., pooler=True) or point the dsn at the server, as DurableInbox needs",
        )


def conninfo_of(dsn: Secret) -> dict[str, Any]:
    """Read a libpq connection string, and add how long a silent host is waited for.

    Raises UsageError without repeating it: it may hold a password.
    """
    try:
        return kept_alive(conninfo.conninfo_to_dict(dsn.value))
    except psycopg.ProgrammingError:
        raise UsageError(
            "the dsn is not a connection string that libpq can read",
            remedy="write host=... dbname=... user=... or postgresql://user@host:port/database",
        ) from None


def _check(conn: psycopg.Connection[Any], database: Database) -> None:
    cursor = psycopg.Cursor(conn, row_factory=dict_row)
    tables = [part.as_string(None) for part in sql.tables(database.table).values()]
    found = cursor.execute(sql.get("check_server"), {"inbox": tables[0], "tables": tables}).fetchone()
    assert found is not None
    if found["standby"] or found["read_only"]:
        raise ReadOnlyDatabase(
            "the database is a standby" if found["standby"] else "the session is read only",
            where=f"Consumer({database.consumer!r})",
            remedy="add target_session_attrs=read-write to the dsn, or name the primary",
        )
    _check_inbox(found, database.table)
    if found["synchronous_commit"] in ("off", "local"):
        log.warning("synchronous_commit is %s here; this session uses on", found["synchronous_commit"])
        found["synchronous_commit"] = "on"
    if not database.pooler:
        commit = {"synchronous_commit": found["synchronous_commit"]}
        cursor.execute(sql.get("set_session"), database.timeouts | commit)


def _check_inbox(found: dict[str, Any], table: str) -> None:
    if found["missing"]:
        raise inbox_missing(_plain(found["missing"]))
    if found["key"] != ["event_id", "consumer"]:
        key = ", ".join(found["key"]) or "none"
        raise InboxUnusable(
            f"table {table} has the primary key ({key}), an inbox has (event_id, consumer)",
            remedy="name another table, or create this one anew with outboxctl inbox init",
        )
    if found["refused"]:
        raise InboxUnusable(
            f"missing rights on {_plain(found['refused'])}: SELECT, INSERT, UPDATE and DELETE are needed",
            remedy="run outboxctl inbox init --grant <this role>",
        )


def _plain(names: list[str]) -> str:
    return ", ".join(name.replace('"', "") for name in names)
