"""One provisioner at a time: whoever changes a pipeline holds an advisory lock of its database.

The lock belongs to the session, so it is free again the moment the holder ends, however it ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

from outbox_pipeline import sql as statements
from outbox_pipeline.errors import Failed

PATIENCE_SECONDS = 120.0
POLL_SECONDS = 0.5


@contextmanager
def hold(
    conn: psycopg.Connection[TupleRow],
    pipeline: str,
    *,
    say: Callable[[str], None],
    patience_seconds: float = PATIENCE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Hold the pipeline's lock for the duration of a block.

    Waits for another holder, says once who that is, and raises Failed after `patience_seconds`.
    """
    key = {"key": f"outbox-pipeline {pipeline}"}
    deadline, told = clock() + patience_seconds, False
    while not _scalar(conn, "try_take_turn", key):
        holder = _holder(conn, key)
        if clock() >= deadline:
            raise Failed(
                f"{holder} has been changing pipeline {pipeline} for more than {patience_seconds:.0f} s",
                remedy="wait for it, or end that session",
            )
        if not told:
            say(f"waiting: {holder} is changing pipeline {pipeline}")
            told = True
        sleep(POLL_SECONDS)
    try:
        yield
    finally:
        # A Ctrl-C can leave a query unfinished; the lock is free then when the caller closes the session.
        if conn.info.transaction_status is TransactionStatus.IDLE:
            _scalar(conn, "give_turn_back", key)


def _scalar(conn: psycopg.Connection[TupleRow], name: str, values: dict[str, str]) -> bool:
    row = conn.execute(statements.get(name), values).fetchone()
    return bool(row and row[0])


def _holder(conn: psycopg.Connection[TupleRow], key: dict[str, str]) -> str:
    row = conn.execute(statements.get("read_turn_holder"), key).fetchone()
    if row is None:
        return "another session"
    pid, user, application, address = row
    return f"{user} ({application}, pid {pid}, {address or 'local'})"
