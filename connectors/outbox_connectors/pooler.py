"""Detect a transaction pooler without changing the server session that other clients use next.

A pooler reports its own process id when a client connects, because cancel requests have to go through it
(seen with PgBouncer 1.18). So does a pooler in session mode (PgBouncer with pool_mode=session), which is as
good as a direct connection. The difference: in transaction mode a second client can get the first client's
server session while the first is still connected.
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
    """Tell whether a pooler assigns server sessions per transaction or statement rather than per connection.

    `conn` is in autocommit mode and nothing has been sent on it. One round trip without pooler or proxy;
    otherwise `connect_again` opens a second connection to the same server, which is closed again.
    Sets nothing, prepares nothing, takes no lock. Raises psycopg.Error.
    """
    serving = _serving(conn, None)
    if serving is None or serving == conn.info.backend_pid:
        return False
    with closing(connect_again()) as second:
        for _ in range(_ATTEMPTS):
            other = _serving(second, _PATIENCE_SECONDS)
            if other is None:  # it waits for a server session: the pool assigns each for a whole connection
                return False
            if other == serving or _serving(conn, None) != serving:
                return True
    return False


def _serving(conn: psycopg.Connection[Any], patience_seconds: float | None) -> int | None:
    """Return the process id of the server session behind a connection; None if no answer comes in time."""
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
