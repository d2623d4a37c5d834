"""Take old rows out of the outbox, once it is proven by id that the topics have them.

Rows leave by the drop of a whole day where the outbox is partitioned, else in small batches: a single
DELETE of a million rows is one long transaction, and its dead rows outlive every older snapshot.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow, dict_row, scalar_row

from outbox_connectors.definition import Definition
from outbox_pipeline import sql as statements
from outbox_pipeline.errors import Refused
from outbox_pipeline.ids.spool import Spool
from outbox_pipeline.ids.topics import Topics
from outbox_pipeline.relay import schema
from outbox_pipeline.relay.names import Names, names_of

Connection = psycopg.Connection[TupleRow]
Say = Callable[[str], None]

BATCH_ROWS = 5000
# A snapshot older than this keeps the dead rows of a prune for longer than the prune takes.
OLD_SNAPSHOT_SECONDS = 60.0
LOCK_MILLISECONDS = "5000"


@dataclass(slots=True)
class Pruned:
    """What was removed, or would be. `unproven` rows are old and stay: no topic has them."""

    rows: int = 0
    partitions: list[str] = field(default_factory=list)
    freed_bytes: int = 0  # given back to the disk; deleted rows leave their space to new ones
    unproven: int = 0

    def document(self) -> dict[str, Any]:
        """Show it as JSON."""
        return {
            "rows": self.rows,
            "partitions": self.partitions,
            "freed_bytes": self.freed_bytes,
            "unproven": self.unproven,
        }


def prune(
    conn: Connection,
    definition: Definition,
    now: datetime,
    *,
    dry_run: bool = False,
    say: Say = lambda _: None,
) -> Pruned:
    """Remove rows older than `outbox.keep` that are proven delivered.

    The proof is the row's id in a topic; in the history of a relay, that the relay put it there. `now`
    is the database's clock, not this machine's. Commits batch by batch: an interruption leaves the
    rest for the next time. Raises Refused when nothing old can be proven, or while an old snapshot
    would keep what is deleted, and Unreachable.
    """
    names, before = names_of(definition), now - definition.outbox.keep
    live = schema.read(conn, names)
    done = Pruned()
    if live.history:
        _delete(conn, names.qualified(names.history), "relayed_at", before, set(), done, dry_run, say)
    if live.settings:  # what is in the outbox of a relay has not been delivered
        return done
    days = _days(conn, names, before)
    unproven = _unproven(conn, definition, names, before)
    done.unproven = len(unproven)
    for day in days:
        _drop(conn, day, unproven, done, dry_run, say)
    _delete(conn, names.qualified(names.outbox), "occurred_at", before, unproven, done, dry_run, say)
    if unproven and not done.rows and not done.partitions:
        raise Refused(
            f"{len(unproven):,} rows are older than {definition.outbox.keep.days} days and no topic has them",
            where=f"table {definition.outbox.table}",
            remedy="run outboxctl audit: they are not delivered, or the topics keep less than outbox.keep",
        )
    return done


def _unproven(conn: Connection, definition: Definition, names: Names, before: datetime) -> set[bytes]:
    """Find the ids of old rows that no topic has."""
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="outbox-prune-")))
        old, delivered = (opened.enter_context(Spool(folder / name)) for name in ("old", "delivered"))
        for chunk in _old(conn, names.qualified(names.outbox), "occurred_at", before):
            old.add(chunk)
        if not old.count:
            return set()
        for chunk in opened.enter_context(Topics(definition)).to_the_end():
            delivered.add(chunk)
        pairs = zip(old.buckets(), delivered.buckets(), strict=True)
        return {one for rows, records in pairs for one in set(rows) - set(records)}


def _old(conn: Connection, table: sql.Identifier, moment: str, before: datetime) -> Iterator[list[bytes]]:
    query = sql.SQL(statements.get("prune_read_old")).format(table=table, moment=sql.Identifier(moment))
    with conn.transaction():
        yield from _chunks(conn, "prune", query, {"before": before})


def _chunks(
    conn: Connection, name: str, query: sql.Composed, values: dict[str, Any]
) -> Iterator[list[bytes]]:
    with conn.cursor(name, row_factory=scalar_row) as cursor:
        cursor.execute(query, values, binary=True)
        while found := cursor.fetchmany(20_000):
            yield found


@dataclass(frozen=True, slots=True)
class _Day:
    """A partition whose day is over, as it was before the proof was read."""

    name: str
    partition: sql.Identifier
    bytes: int
    rows: int


def _days(conn: Connection, names: Names, before: datetime) -> list[_Day]:
    table = names.qualified(names.outbox).as_string(conn)
    with conn.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(statements.get("prune_read_partitions"), {"table": table}).fetchall()
    days = []
    for row in found:
        if row["behind"] is not None and row["behind"] <= before:
            partition = names.qualified(row["name"])
            days.append(_Day(row["name"], partition, row["bytes"], _count(conn, partition)))
    return days


def _count(conn: Connection, partition: sql.Identifier) -> int:
    row = conn.execute(sql.SQL(statements.get("prune_count")).format(partition=partition)).fetchone()
    return int(row[0]) if row else 0


def _drop(conn: Connection, day: _Day, unproven: set[bytes], done: Pruned, dry_run: bool, say: Say) -> None:
    """Drop a partition if all of its rows are proven and none came since. The outbox is append-only."""
    table = {"partition": day.partition}
    query = sql.SQL(statements.get("audit_read_outbox")).format(table=day.partition)
    with conn.transaction():
        chunks = _chunks(conn, "prune_day", query, {"since": None})
        if any(not unproven.isdisjoint(chunk) for chunk in chunks):
            say(f"{day.name} stays: some of its rows are in no topic")
            return
    if not dry_run:
        with conn.transaction():
            conn.execute(statements.get("prune_set_lock_timeout"), {"milliseconds": LOCK_MILLISECONDS})
            conn.execute(sql.SQL(statements.get("prune_lock_partition")).format(**table))
            if _count(conn, day.partition) != day.rows:
                say(f"{day.name} stays: a row has just come in")
                return
            conn.execute(sql.SQL(statements.get("prune_drop_partition")).format(**table))
    done.partitions.append(day.name)
    done.rows += day.rows
    done.freed_bytes += day.bytes


def _delete(
    conn: Connection,
    table: sql.Identifier,
    moment: str,
    before: datetime,
    unproven: set[bytes],
    done: Pruned,
    dry_run: bool,
    say: Say,
) -> None:
    delete = sql.SQL(statements.get("prune_delete")).format(table=table)
    ids = [one for chunk in _old(conn, table, moment, before) for one in chunk if one not in unproven]
    if ids and not dry_run:
        _check_snapshots(conn)
    for at in range(0, len(ids), BATCH_ROWS):
        part = ids[at : at + BATCH_ROWS]
        if not dry_run:
            conn.execute(delete, {"ids": [UUID(bytes=one) for one in part]})
            say(f"{at + len(part):,} of {len(ids):,} rows deleted")
        done.rows += len(part)


def _check_snapshots(conn: Connection) -> None:
    row = conn.execute(statements.get("prune_read_oldest_snapshot")).fetchone()
    if row is None or row[0] < OLD_SNAPSHOT_SECONDS:
        return
    age, pid, user, application = row
    raise Refused(
        f"pid {pid} ({user}{', ' + application if application else ''}) has had a snapshot for {age:.0f} s: "
        "deleted rows would stay as dead ones",
        remedy="wait for it or end it, then prune again",
    )
