"""Connect to PostgreSQL, and say in one line why not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, LiteralString

import psycopg
from psycopg import conninfo as libpq
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition, Secret
from outbox_connectors.errors import DefinitionError, Failed, OutboxError, Refused, Unreachable
from outbox_connectors.keepalive import kept_alive
from outbox_connectors.pooler import shares_sessions
from outbox_connectors.refused_connection import unreachable
from outbox_pipeline import sql as statements
from outbox_pipeline.servers import trust

CONNECT_TIMEOUT_SECONDS = 5
# A server that shuts down, an administrator, or one of the server's time-outs (PostgreSQL docs, appendix A).
_SESSION_ENDED: Final = frozenset({"25P03", "25P04", "57P01", "57P02", "57P03", "57P05"})


def connect(
    conninfo: Secret,
    *,
    application_name: str,
    dbname: str | None = None,
    replication: bool = False,
    pooler: bool = False,
) -> psycopg.Connection[TupleRow]:
    """Open a session in autocommit mode.

    An empty `conninfo` means libpq's own PG* environment. `dbname` overrides the database of both.
    `replication` opens a replication session of that database, which takes simple queries only.
    Waits CONNECT_TIMEOUT_SECONDS per address unless the conninfo or PGCONNECT_TIMEOUT says otherwise.
    Transactions are READ COMMITTED and dates ISO, whatever role, database and environment say: a snapshot
    from before a lock was waited for lacks what was committed meanwhile, and psycopg reads no other dates.
    A pooler that lends server sessions for a transaction is noticed before anything is set, and refused: what
    is set, prepared or locked would stay behind in a session that others use. With `pooler` it is not, for
    callers that keep everything inside single transactions; nothing is prepared then.
    Raises Refused for a pooler, DefinitionError for a conninfo libpq cannot read (its text is never repeated:
    it may hold a password) and Unreachable for everything else.
    """
    settings = _settings(conninfo, os.environ)
    settings["application_name"] = application_name
    if dbname is not None:
        settings["dbname"] = dbname
    if replication:
        settings["replication"] = "database"
    conn = _open(settings)
    if pooler:
        conn.prepare_threshold = None
    elif not replication:
        _refuse_pooler(conn, settings)
    conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    if not replication and not (conn.info.parameter_status("DateStyle") or "").startswith("ISO"):
        _set(conn, "set_iso_dates")
    return conn


def as_admin(
    definition: Definition, application_name: str, *, only_look: bool = False
) -> psycopg.Connection[TupleRow]:
    """Open a session in autocommit mode in the outbox's database, as `connect` does with postgres.admin.

    No idle_session_timeout ends it: it may hold the lock of a command that reads topics meanwhile. Functions,
    operators and types are PostgreSQL's own, whatever is in other schemas. Raises Refused where the outbox or
    an object beside it would run the code of a role that is not trusted (see `trust`); with `only_look` it
    does not, for callers that read catalogs or look for themselves.
    """
    conn = connect(
        definition.postgres.admin,
        application_name=application_name,
        dbname=definition.postgres.connector.database,
    )
    administer(conn)
    if not only_look:
        _refuse_untrusted(conn, definition)
    return conn


def administer(conn: psycopg.Connection[TupleRow]) -> None:
    """Let a session find PostgreSQL's own functions and operators only, and be idle as long as it takes."""
    _set(conn, "set_admin_session")


def _refuse_untrusted(conn: psycopg.Connection[TupleRow], definition: Definition) -> None:
    try:
        trust.refuse(trust.of_outbox(conn, definition.outbox.table))
    except psycopg.Error as error:
        conn.close()
        raise failure(error) from error
    except OutboxError:
        conn.close()
        raise


def _open(settings: Mapping[str, str]) -> psycopg.Connection[TupleRow]:
    try:
        return psycopg.connect(libpq.make_conninfo(**settings), autocommit=True)
    except psycopg.OperationalError as error:
        raise unreachable(
            str(error),
            _place(settings, os.environ),
            dsn="postgres.admin",
            database="postgres.connector.database",
        ) from error


def _refuse_pooler(conn: psycopg.Connection[TupleRow], settings: Mapping[str, str]) -> None:
    try:
        shared = shares_sessions(conn, lambda: _open(settings))
    except psycopg.Error as error:
        conn.close()
        raise failure(error) from error
    except OutboxError:
        conn.close()
        raise
    if shared:
        conn.close()
        raise Refused(
            "a pooler lends its server sessions to others between transactions",
            where=_place(settings, os.environ),
            remedy="outboxctl needs a session of its own: point postgres.admin at the server",
        )


def _set(conn: psycopg.Connection[TupleRow], statement: LiteralString) -> None:
    try:
        conn.execute(statements.get(statement))
    except psycopg.Error as error:
        conn.close()
        raise failure(error) from error


def server_major(conn: psycopg.Connection[TupleRow]) -> int:
    """Tell the server's major version, without a query."""
    return conn.info.server_version // 10000


def is_lost(error: psycopg.Error) -> bool:
    """Tell whether the session is gone, and not merely a statement refused."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.sqlstate in _SESSION_ENDED or error.sqlstate.startswith("08")


def is_refused(error: psycopg.Error) -> bool:
    """Tell whether the statement will be refused again: a table, column or right is missing (class 42)."""
    return (error.sqlstate or "").startswith("42")


def failure(error: psycopg.Error) -> OutboxError:
    """Put a server's refusal of a statement into one line, for a caller that knows nothing better to say."""
    problem = " ".join((error.diag.message_primary or str(error)).split())
    if is_lost(error):
        return Unreachable(f"the connection broke: {problem}", where="PostgreSQL", remedy="run it again")
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
        return Failed(problem, where="PostgreSQL", remedy="run outboxctl plan to see what is missing")
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return Failed(problem, where="PostgreSQL", remedy="use a role that may in postgres.admin or PGUSER")
    return Failed(problem, where="PostgreSQL", remedy="--debug shows where it came from")


def _settings(conninfo: Secret, environ: Mapping[str, str]) -> dict[str, str]:
    try:
        parsed = libpq.conninfo_to_dict(conninfo.value)
    except psycopg.ProgrammingError:
        raise DefinitionError(
            "the connection string is not one libpq can read",
            where="postgres.admin",
            remedy="write host=… port=… user=… or postgresql://user@host:port/database",
        ) from None
    settings = {name: str(value) for name, value in parsed.items() if value is not None}
    if "PGCONNECT_TIMEOUT" not in environ:
        settings.setdefault("connect_timeout", str(CONNECT_TIMEOUT_SECONDS))
    return kept_alive(settings)


def _place(settings: Mapping[str, str], environ: Mapping[str, str]) -> str:
    host = settings.get("host") or environ.get("PGHOST", "local socket")
    port = settings.get("port") or environ.get("PGPORT", "5432")
    return f"PostgreSQL at {host}:{port}"
