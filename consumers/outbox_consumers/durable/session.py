"""The session of one worker: a transaction begins with a handler's first statement, not before.

A handler that takes minutes mostly waits for others. As long as it has not written anything there is no
transaction that would hold back vacuum or be ended by an idle time-out.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    """The connection a job's handler gets. Whatever is written through it is committed with the job."""

    def begin(self) -> None:
        """Begin the transaction now, if it has not begun."""
        if self.pgconn.transaction_status == Status.IDLE:
            psycopg.Cursor(self).execute("SELECT")

    @contextmanager
    def transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> Iterator[psycopg.Transaction]:
        """Open a part that can fail by itself: a savepoint, also where nothing was written before.

        Psycopg would commit an outermost block when it ends, before the job's own fence.
        """
        self.begin()
        with super().transaction(savepoint_name, force_rollback) as part:
            yield part


class WorkerSession(ConsumerSession):
    """A session whose transactions begin by themselves. Used by one thread."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._where = database

    def connection(self) -> LazyConnection:
        """Give the open connection; open one where there is none or it is broken.

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
    """Complete the connection parameters of a worker's session."""
    settings = conninfo_of(dsn)
    settings.setdefault("connect_timeout", str(int(database.connect_timeout)))
    settings["application_name"] = f"{what} {database.consumer}"[:63]
    return settings
