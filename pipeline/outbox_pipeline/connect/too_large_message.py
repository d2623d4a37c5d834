"""Recognise a connector that something too large has stopped: for a record, or for its worker's memory.

Its slot and its offset are sound, and every restart meets the same message again. What has happened is
read from the task's trace; where the slot does not keep much, the message itself is looked for.
"""

from __future__ import annotations

from contextlib import suppress

import psycopg
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_connectors.findings import Severity
from outbox_pipeline import sql as statements
from outbox_pipeline.connect.answers import ConnectorStatus
from outbox_pipeline.connect.offsets import Positions
from outbox_pipeline.servers.positions import RECOVER, PositionFinding

CODE = "message_too_large"
# The innermost causes of a task that failed for it (measured on Debezium 3.7.0.Final, Connect 4.3.1).
SIGNS = ("RecordTooLargeException", "OutOfMemoryError")
RECORD_BYTES = 1_000_000  # a producer refuses records above 1,048,576 bytes, unless it is told otherwise
PEEK_BYTES = 256 * 1024 * 1024  # of WAL; the server holds a whole message in memory while it decodes
PEEK_SECONDS = 20.0


def is_sign(trace_line: str) -> bool:
    """Say whether a task failed because something was too large. Pure."""
    return any(sign in trace_line for sign in SIGNS)


def look(
    conn: psycopg.Connection[TupleRow],
    definition: Definition,
    status: ConnectorStatus | None,
    positions: Positions,
) -> PositionFinding | None:
    """Say what stopped the connector where that was something too large; None where it was not.

    Decodes what an idle slot keeps, at most PEEK_BYTES, for PEEK_SECONDS at most; consumes nothing.
    """
    if status is None or not status.failed or not is_sign(status.trace_line):
        return None
    found = _largest(conn, definition, positions)
    what = (
        f"the log holds a logical message of {found[1]:,} bytes under the prefix {found[0]!r}"
        if found is not None and found[1] > RECORD_BYTES
        else "what the slot holds next, a logical message or a row, is too large"
    )
    return PositionFinding(
        CODE,
        Severity.CRITICAL,
        f"{what}: the task fails at every start ({status.trace_line})",
        RECOVER,
    )


def _largest(
    conn: psycopg.Connection[TupleRow], definition: Definition, positions: Positions
) -> tuple[str, int] | None:
    if positions.restart is None or positions.log_end - positions.restart > PEEK_BYTES:
        return None
    names = {"slot": positions.slot_name, "publication": definition.postgres.publication}
    # Without a name the trace has to do: somebody reads the slot, or it cannot be decoded in this time.
    with suppress(psycopg.Error), conn.transaction():
        conn.execute(statements.get("limit_statement"), {"milliseconds": int(PEEK_SECONDS * 1000)})
        row = conn.execute(statements.get("peek_largest_message"), names).fetchone()
        return (str(row[0]), int(row[1])) if row else None
    return None
