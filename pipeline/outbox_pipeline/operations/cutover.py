"""Establish a cutover: a position in the outbox and in the WAL, and move an idle slot to it.

No transaction has rows on both sides. Rows up to the position are published by the relay or by
`recover`, later rows by the connector.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_pipeline import sql as statements
from outbox_pipeline.errors import Failed, Refused
from outbox_pipeline.servers import logical_messages, postgres

LOCK_MILLISECONDS = "10000"


def establish(
    conn: psycopg.Connection[TupleRow], definition: Definition, note: Callable[[int], None] = lambda _: None
) -> int:
    """Establish a cutover; return its position. `note` is called with it before the transaction commits.

    Writers wait meanwhile: some ten milliseconds, and until every open transaction that has written ends.
    Raises Failed when one does not end soon, Refused when the slot is being read, and Unreachable.
    """
    table = sql.Identifier(definition.outbox.table.schema, definition.outbox.table.name)
    try:
        with (
            postgres.as_admin(definition, "outboxctl fence") as other,
            conn.transaction(),
        ):
            conn.execute(statements.get("limit_lock_wait"), {"milliseconds": LOCK_MILLISECONDS})
            conn.execute(sql.SQL(statements.get("fence_lock_outbox")).format(table=table))
            ends = sql.SQL(statements.get("fence_read_ends")).format(table=table)
            until, end = conn.execute(ends).fetchone() or (0, "0/0")
            # A commit of its own writes the log to disk up to here; a slot cannot move beyond that.
            logical_messages.emit(other, definition.heartbeat_prefix, "fence", transactional=True)
            moved = {"slot": definition.postgres.slot, "lsn": end}
            conn.execute(statements.get("fence_advance_slot"), moved)
            note(until)
    except psycopg.errors.ObjectInUse as error:
        raise Refused(
            "somebody reads the slot already",
            where=f"slot {definition.postgres.slot}",
            remedy="stop it (outboxctl connectors stop), then go on",
        ) from error
    except psycopg.errors.LockNotAvailable as error:
        raise Failed(
            "a transaction that has written the outbox does not end",
            where=f"table {definition.outbox.table}",
            remedy="end it (outboxctl status names it), then run this again",
        ) from error
    return int(until)
