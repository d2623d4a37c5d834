"""The database session of one worker: a transaction begins with a handler's first statement, not before.

A handler that takes minutes mostly waits for other systems. Until its first statement there is no open
transaction that would hold back vacuum or be ended by an idle time-out.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from outbox_connectors.definition import Secret
from outbox_consumers.handlers.connection import HandlerConnection, HandlerCursor
from outbox_consumers.handlers.session import (
    ConsumerSession,
    Database,
    Status,
    _check,
    conninfo_of,
    refuse_pooler,
)


class LazyConnection(HandlerConnection):
    """The connection that a job's handler gets. What it writes is committed with the end of the job."""

    def begin(self) -> None:
        """Begin the transaction unless it has begun."""
        if self.pgconn.transaction_status == Status.IDLE:
            psycopg.Cursor(self).execute("SELECT")

    def wait_for(self, function: Callable[..., Coroutine[Any, Any, object]], argument: object) -> object:
        """Call an asynchronous handler with an AsyncConnection in the job's transaction, until it ends.

        The transaction begins before: otherwise `async with conn.transaction()` would commit at its end.
        """
        self.begin()
        return super().wait_for(function, argument)

    @contextmanager
    def transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> Iterator[psycopg.Transaction]:
        """Open a savepoint, also when nothing has been written before.

        Without one, psycopg would commit the outermost block before the job is ended under its fence.
        """
        self.begin()
        with super().transaction(savepoint_name, force_rollback) as part:
            yield part


class WorkerSession(ConsumerSession):
    """A session whose transactions begin with the first statement. Used by one thread."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._where = database

    def connection(self) -> LazyConnection:
        """Return the open connection; connect if there is none or it is broken.

        Raises psycopg.OperationalError while the server cannot be reached.
        """
        conn = self._conn
        if not isinstance(conn, LazyConnection) or conn.closed:
            conn = self._conn = _connect(self._where)
        return conn


def _connect(database: Database) -> LazyConnection:
    settings = settings_of(database.dsn, database, "outbox worker")
    conn = LazyConnection.connect("", autocommit=True, cursor_factory=HandlerCursor, **settings)
    try:
        refuse_pooler(conn, settings)
        _check(conn, database)
        conn.autocommit = False
    except BaseException:
        conn.close()
        raise
    return conn


def settings_of(dsn: Secret, database: Database, what: str) -> dict[str, Any]:
    """Return the connection parameters of a worker's session; `what` goes into its application_name."""
    settings = conninfo_of(dsn)
    settings.setdefault("connect_timeout", str(int(database.connect_timeout)))
    settings["application_name"] = f"{what} {database.consumer}"[:63]
    return settings
