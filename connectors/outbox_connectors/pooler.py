"""Tell a transaction pooler from the server, without leaving anything in a session that others use next.

A pooler announces a process id of its own when a client connects, since a request to cancel has to come back
to it (seen with PgBouncer 1.18). So does one that keeps a server connection for each client (PgBouncer with
pool_mode=session), which serves as well as the server itself. What tells them apart is whether a server
connection is lent to somebody else while its client is still there: a second client gets the first one's.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

import psycopg
from psycopg.pq import ExecStatus

_STATEMENT: Final = "SELECT pg_catalog.pg_backend_pid()"
_ATTEMPTS: Final = 5
_PATIENCE_SECONDS: Final = 3.0


def shares_sessions(
    conn: psycopg.Connection[Any], connect_again: Callable[[], psycopg.Connection[Any]]
) -> bool:
    """Tell whether a server session is lent for a transaction or a statement rather than for good.

    `conn` is in autocommit mode and nothing has been sent on it. One round trip where there is neither pooler
    nor proxy; otherwise `connect_again` opens a second connection to the same place, which is closed again.
    Sets nothing, prepares nothing, takes no lock. Raises psycopg.Error.
    """
    serving = _serving(conn, None)
    if serving is None or serving == conn.info.backend_pid:
        return False
    with closing(connect_again()) as beside:
        for _ in range(_ATTEMPTS):
            other = _serving(beside, _PATIENCE_SECONDS)
            if other is None:  # it waits for a server connection: the pool lends each for a whole session
                return False
            if other == serving or _serving(conn, None) != serving:
                return True
    return False


def _serving(conn: psycopg.Connection[Any], patience_seconds: float | None) -> int | None:
    """Ask for the process that serves this statement; None where no answer comes in time."""
    protocol = conn.pgconn
    protocol.send_query(_STATEMENT.encode())
    while protocol.flush():
        select.select([], [protocol.socket], [])
    while protocol.is_busy():
        if not select.select([protocol.socket], [], [], patience_seconds)[0]:
            return None
        protocol.consume_input()
    results = list(iter(protocol.get_result, None))
    if not results or results[0].status != ExecStatus.TUPLES_OK:
        message = results[0].error_message.decode("utf-8", "replace") if results else "no answer"
        raise psycopg.OperationalError(message)
    return int(results[0].get_value(0, 0) or 0)
