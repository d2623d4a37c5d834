"""Take old rows out of the outbox, once it is proven twice that they are delivered: by slot and by id.

The slot's confirmed position says that the connector has nothing to do with these rows any more; the
id in a topic says that the event is there. Rows leave by the drop of a whole day where the outbox is
partitioned, else in small batches: a single DELETE of a million rows is one long transaction, and its
dead rows outlive every older snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow, dict_row

from outbox_connectors.definition import Definition
from outbox_pipeline import sql as statements
from outbox_pipeline.connect import message_gate
from outbox_pipeline.errors import Refused
from outbox_pipeline.ids import publisher
from outbox_pipeline.ids.comparison import missing_in_topics
from outbox_pipeline.ids.in_tables import PAGES
from outbox_pipeline.ids.publisher import Publisher
from outbox_pipeline.provision import preflight
from outbox_pipeline.relay import schema
from outbox_pipeline.relay.names import RelayNames, relay_names
from outbox_pipeline.servers import logical_messages, lsn, slots

Connection = psycopg.Connection[TupleRow]
Say = Callable[[str], None]

BATCH_ROWS = 5000
# A snapshot older than this keeps the dead rows of a prune for longer than the prune takes.
OLD_SNAPSHOT_SECONDS = 60.0
LOCK_MILLISECONDS = "5000"
# The time in which a connector that works confirms the end of the WAL: Connect stores offsets, and Debezium
# confirms them, every offset.flush.interval.ms, 60 s by default.
CONFIRM_SECONDS = 150.0


@dataclass(slots=True)
class Pruned:
    """What was removed, or would be. `unproven` rows are old and stay: no topic has them."""

    rows: int = 0
    partitions: list[str] = field(default_factory=list)
    freed_bytes: int = 0  # given back to the disk
    reusable_bytes: int = 0  # of deleted rows: new ones take their place after the next vacuum
    unproven: int = 0
    stopped: str = ""  # why it ended before everything was done; the rest is for the next time

    def document(self) -> dict[str, Any]:
        """Show it as JSON."""
        return {
            "rows": self.rows,
            "partitions": self.partitions,
            "freed_bytes": self.freed_bytes,
            "reusable_bytes": self.reusable_bytes,
            "unproven": self.unproven,
            "stopped": self.stopped,
        }


def prune(
    conn: Connection,
    definition: Definition,
    now: datetime,
    *,
    dry_run: bool = False,
    say: Say = lambda _: None,
) -> Pruned:
    """Remove rows older than `outbox.keep` that are proven delivered. Fit to be called on a schedule.

    The proof: the slot is confirmed beyond them, and their ids are in the topics; in the history of a
    relay, that the relay put them there. `now` is the database's clock, not this machine's. `conn` is
    in autocommit mode; commits batch by batch, so an interruption leaves the rest for the next time.
    Costs one look at the table and, where something is old, the topics from the oldest event on, and a
    wait of at most CONFIRM_SECONDS for the slot. Two at the same time do no harm. Raises Refused when
    nothing old can be proven (no slot, a slot that does not advance, no topic has the ids), or while an
    old snapshot would keep what is deleted; and Unreachable.
    """
    run = _Run(
        conn, definition, relay_names(definition), now - definition.outbox.keep, dry_run, say, Pruned()
    )
    live = schema.read(conn, run.names)
    whose = publisher.standing(conn, definition)
    relayed = whose is Publisher.RELAY or (whose is None and live.settings)
    _check_needs(run, history=live.history, relayed=relayed)
    if live.history and not run.done.stopped:
        _prune_history(run)
    if relayed:
        return run.done  # what is in the outbox of a relay has not been delivered
    if run.has_old(run.names.outbox, "occurred_at"):
        _check_slot(run)
        _prune_outbox(run)
    return run.done


def _check_needs(run: _Run, *, history: bool, relayed: bool) -> None:
    """Refuse, before the first row is removed, what would stop a later step."""
    names = run.names
    wanted = dict.fromkeys((names.outbox, *([names.history] if history else [])), ("SELECT", "DELETE"))
    preflight.table_rights(run.conn, names.schema, wanted)
    if not relayed and run.has_old(names.outbox, "occurred_at"):
        preflight.event_topics(run.definition)


@dataclass(frozen=True, slots=True)
class _Run:
    conn: Connection
    definition: Definition
    names: RelayNames
    before: datetime
    dry_run: bool
    say: Say
    done: Pruned

    def has_old(self, table: str, moment: str) -> bool:
        """Return whether a table has rows old enough to remove."""
        places = {"table": self.names.qualified(table), "moment": sql.Identifier(moment)}
        query = sql.SQL(statements.get("prune_has_old")).format(**places)
        row = self.conn.execute(query, {"before": self.before}).fetchone()
        return bool(row and row[0])

    def old(self, table: str, moment: str) -> Iterator[tuple[set[bytes], datetime]]:
        """Yield old rows of a table (no partitioned one) range by range: their ids, the oldest event."""
        place = self.names.qualified(table)
        of = {"name": place.as_string(self.conn)}
        row = self.conn.execute(statements.get("ids_read_pages"), of).fetchone()
        query = sql.SQL(statements.get("prune_read_old")).format(table=place, moment=sql.Identifier(moment))
        for page in range(0, row[0] if row else 0, PAGES):
            ends = {"from_row": f"({page},0)", "to_row": f"({page + PAGES},0)", "before": self.before}
            packed, oldest = self.conn.execute(query, ends, binary=True).fetchone() or (None, None)
            if packed:
                yield {packed[at : at + 16] for at in range(0, len(packed), 16)}, oldest


# -- proof -------------------------------------------------------------------------------------------


def _check_slot(run: _Run) -> None:
    """Wait until the slot is confirmed beyond everything that is in the table now."""
    name = run.definition.postgres.slot
    slot = slots.read(run.conn, name)
    if slot is None or slot.lost:
        raise Refused(
            f"slot {name} is {'gone' if slot is None else 'lost'}: rows may be the only copy of an event",
            where=f"table {run.definition.outbox.table}",
            remedy="run outboxctl recover, then prune again",
        )
    if run.dry_run:
        return
    values = {"slot": name}
    row = run.conn.execute(statements.get("prune_read_log_end"), values).fetchone()
    end = lsn.parse(row[0]) if row else 0
    if not message_gate.why_harmful(run.definition, run.definition.heartbeat_prefix):
        logical_messages.emit(
            run.conn, run.definition.heartbeat_prefix
        )  # behind `end`, for an idle one to confirm
    deadline = time.monotonic() + CONFIRM_SECONDS
    while (confirmed := _confirmed(run.conn, values)) < end:
        if time.monotonic() > deadline:
            raise Refused(
                f"slot {name} is confirmed up to {lsn.text(confirmed)}, not yet to {lsn.text(end)}",
                where=f"table {run.definition.outbox.table}",
                remedy="see outboxctl status, and prune when the connector keeps up",
            )
        time.sleep(0.1)


def _confirmed(conn: Connection, values: dict[str, str]) -> int:
    row = conn.execute(statements.get("prune_read_log_end"), values).fetchone()
    return lsn.parse(row[1]) if row and row[1] else 0


# -- removal -----------------------------------------------------------------------------------------


def _prune_history(run: _Run) -> None:
    """Delete what a relay has published. Its proof is that the row is there."""
    for name, _, _ in _parts(run, run.names.history):
        if run.has_old(name, "relayed_at"):
            for ids, _ in run.old(name, "relayed_at"):
                _delete(run, name, ids)


def _prune_outbox(run: _Run) -> None:
    for name, behind, size in _parts(run, run.names.outbox):
        if run.done.stopped:
            break
        if behind is not None and behind <= run.before:
            _drop(run, name, size)
        elif behind is None:  # a plain table, or the partition of days that have none of their own
            for ids, oldest in run.old(name, "occurred_at"):
                unproven = missing_in_topics(run.definition, ids, oldest)
                run.done.unproven += len(unproven)
                _delete(run, name, ids - unproven)
    done = run.done
    if done.unproven and not done.rows and not done.partitions and not done.stopped:
        raise Refused(
            f"{done.unproven:,} rows are older than {run.definition.outbox.keep.days} days "
            "and no topic has them",
            where=f"table {run.definition.outbox.table}",
            remedy="run outboxctl audit: they are not delivered, or the topics keep less than outbox.keep",
        )


def _parts(run: _Run, table: str) -> Sequence[tuple[str, datetime | None, int]]:
    """List a table's partitions with the day behind each and its size; of a plain one, itself."""
    place = {"table": run.names.qualified(table).as_string(run.conn)}
    with run.conn.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(statements.get("prune_read_partitions"), place).fetchall()
    return [(row["name"], row["behind"], row["bytes"]) for row in found] or [(table, None, 0)]


def _drop(run: _Run, name: str, size: int) -> None:
    """Drop a partition if all of its rows are proven and none came since. The outbox is append-only."""
    table = {"partition": run.names.qualified(name)}
    count = _count(run.conn, table)
    for ids, oldest in run.old(name, "occurred_at"):
        unproven = missing_in_topics(run.definition, ids, oldest)
        if unproven:
            run.done.unproven += len(unproven)
            run.say(f"{name} stays: {len(unproven):,} of its rows are in no topic")
            return
    if not run.dry_run:
        try:
            with run.conn.transaction():
                run.conn.execute(statements.get("limit_lock_wait"), {"milliseconds": LOCK_MILLISECONDS})
                run.conn.execute(sql.SQL(statements.get("prune_lock_partition")).format(**table))
                if _count(run.conn, table) != count:
                    run.say(f"{name} stays: a row has just come in")
                    return
                run.conn.execute(sql.SQL(statements.get("prune_drop_partition")).format(**table))
        except psycopg.errors.LockNotAvailable:
            run.done.stopped = f"{name} is in use by another session"
            run.say(f"stops here: {run.done.stopped}")
            return
    run.done.partitions.append(name)
    run.done.rows += count
    run.done.freed_bytes += size


def _count(conn: Connection, table: dict[str, sql.Identifier]) -> int:
    row = conn.execute(sql.SQL(statements.get("prune_count")).format(**table)).fetchone()
    return int(row[0]) if row else 0


def _delete(run: _Run, name: str, proven: set[bytes]) -> None:
    delete = sql.SQL(statements.get("prune_delete")).format(table=run.names.qualified(name))
    ids = sorted(proven)
    for at in range(0, len(ids), BATCH_ROWS):
        part = [UUID(bytes=one) for one in ids[at : at + BATCH_ROWS]]
        if run.dry_run:
            run.done.rows += len(part)
            continue
        if not run.done.stopped:
            _check_snapshots(run)
        if run.done.stopped:
            return
        rows, size = run.conn.execute(delete, {"ids": part}).fetchone() or (0, 0)
        run.done.rows += rows
        run.done.reusable_bytes += size
        run.say(f"{run.done.rows:,} rows deleted")


def _check_snapshots(run: _Run) -> None:
    """Stop where an old snapshot would keep what is deleted; raise Refused if nothing is done yet."""
    age, who = run.conn.execute(statements.get("prune_read_oldest_snapshot")).fetchone() or (0.0, "")
    if age < OLD_SNAPSHOT_SECONDS:
        return
    problem = f"{who} has had a snapshot for {age:.0f} s: deleted rows would stay as dead ones"
    if run.done.rows or run.done.partitions:
        run.done.stopped = problem
        run.say(f"stops here: {problem}")
        return
    raise Refused(problem, remedy="wait for it or end it, then prune again")
