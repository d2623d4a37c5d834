"""How long the inbox remembers ids: one partition per day, created in advance, dropped after the window.

A UUIDv7 begins with its time, so an id always falls into the partition of the same day: ids are unique over
all partitions, and a day is forgotten by DROP instead of DELETE. Ids without a time are in the default
partition and are deleted by the time at which they were received.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg import sql as composing
from psycopg.rows import dict_row, tuple_row

from outbox_consumers import sql
from outbox_consumers.errors import RefusedWindow

AHEAD: Final = timedelta(days=7)
MARGIN: Final = timedelta(days=1)  # for clock differences and segments that Kafka has not deleted yet
_BOUND: Final = re.compile(r"FROM \('([0-9a-f-]{36})'\) TO \('([0-9a-f-]{36})'\)")


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of the inbox. `day` None: the default partition."""

    name: str
    day: date | None
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What maintenance does: days to create, partitions to drop, and before which time rows are deleted."""

    create: tuple[date, ...]
    drop: tuple[Partition, ...]
    before: datetime


def first_id(moment: datetime) -> UUID:
    """Return the lowest UUIDv7 of a moment (RFC 9562: 48 bits of milliseconds)."""
    return UUID(int=int(moment.timestamp() * 1000) << 80)


def day_of(identifier: UUID) -> date:
    """Return the day (UTC) of a UUIDv7."""
    return datetime.fromtimestamp((identifier.int >> 80) / 1000, UTC).date()


def is_stale(packed_id: bytes, window: bytes) -> bool:
    """Return whether an id is a UUIDv7 from before the window: whether it was handled is unknown."""
    return packed_id < window and packed_id[6] >> 4 == 7


def window_of(retentions: Mapping[str, timedelta | None], keep: timedelta | None) -> timedelta | None:
    """Return how long the inbox has to remember ids, from the retention of the topics; None: for ever.

    A topic whose records never expire may deliver any event again, so no id can be forgotten. `keep` makes
    the window longer; raises RefusedWindow if it would make it shorter.
    """
    endless = sorted(topic for topic, retention in retentions.items() if retention is None)
    if endless:
        if keep is not None:
            raise RefusedWindow(
                f"topic {endless[0]} keeps its records for ever: forgetting ids would repeat effects",
                remedy="set retention.ms on the topic, or leave --keep out",
            )
        return None
    needed = max((r for r in retentions.values() if r is not None), default=timedelta(0)) + MARGIN
    if keep is not None and keep < needed:
        longest = max(retentions, key=lambda topic: retentions[topic] or timedelta(0))
        raise RefusedWindow(
            f"keeping {_words(keep)} is shorter than topic {longest} keeps its records ({_words(needed)} "
            "with a day's margin): a reset of the offsets would repeat effects",
            remedy=f"keep {_words(needed)} or longer",
        )
    return keep or needed


def plan(partitions: Sequence[Partition], now: datetime, window: timedelta | None) -> RetentionPlan:
    """Decide which days to create and which partitions to drop."""
    there = {p.day for p in partitions}
    days = (AHEAD // timedelta(days=1)) + 1
    wanted = [now.date() + timedelta(days=n) for n in range(days)]
    before = now - window if window is not None else datetime.min.replace(tzinfo=UTC)
    # A day is over when its last id is older than the window.
    drop = tuple(p for p in partitions if p.day is not None and p.day + timedelta(days=1) <= before.date())
    return RetentionPlan(tuple(day for day in wanted if day not in there), drop, before)


def partitions(conn: psycopg.Connection[Any], table: str) -> tuple[Partition, ...]:
    """Read the partitions of an inbox."""
    cursor = psycopg.Cursor(conn, row_factory=dict_row)
    rows = cursor.execute(sql.get("list_inbox_partitions"), {"inbox": sql.table(table).as_string(None)})
    return tuple(Partition(r["name"], _day(r["bounds"]), r["bytes"], r["rows"]) for r in rows)


def window_start(conn: psycopg.Connection[Any], table: str) -> bytes:
    """Read the id below which the inbox remembers nothing; empty if it has never forgotten any."""
    cursor = psycopg.Cursor(conn, row_factory=tuple_row)
    row = cursor.execute(sql.compose("read_window", journal=sql.journal(table)), binary=True).fetchone()
    return bytes(row[0]) if row and row[0] else b""


def consumers(conn: psycopg.Connection[Any], table: str) -> list[dict[str, Any]]:
    """Count the rows of each consumer and read the times of its first and last. Reads the whole inbox."""
    cursor = psycopg.Cursor(conn, row_factory=dict_row)
    return cursor.execute(sql.compose("count_inbox", inbox=sql.table(table))).fetchall()


def create_day(table: str, day: date) -> bytes:
    """Return the statement that creates the partition of a day."""
    start = datetime.combine(day, time(), UTC)
    return sql.compose(
        "create_inbox_day",
        partition=sql.table(f"{table}_p{day:%Y%m%d}"),
        inbox=sql.table(table),
        first=composing.Literal(str(first_id(start))),
        behind=composing.Literal(str(first_id(start + timedelta(days=1)))),
    )


def maintain(
    conn: psycopg.Connection[Any], table: str, todo: RetentionPlan, lock_seconds: float = 5.0
) -> int:
    """Carry out the plan, each step in its own transaction, and return how many rows were deleted.

    Creating and dropping a partition take a short lock on the inbox, and consumers wait behind it. Waits for
    the lock at most `lock_seconds`, then raises psycopg.errors.LockNotAvailable: run it again. The role has
    to own the inbox. `conn` is in autocommit mode.
    """
    for day in todo.create:
        with _bounded(conn, lock_seconds):
            conn.execute(create_day(table, day))
    if todo.drop:
        newest = max(p.day for p in todo.drop if p.day is not None)
        with _bounded(conn, lock_seconds):
            _drop(conn, table, todo.drop, first_id(datetime.combine(newest + timedelta(days=1), time(), UTC)))
    return _prune(conn, table, todo.before, lock_seconds)


@contextmanager
def _bounded(conn: psycopg.Connection[Any], lock_seconds: float) -> Iterator[None]:
    """Open a transaction with a bound on its waits for locks; nothing of it is left in the session."""
    with conn.transaction():
        conn.execute(sql.get("set_lock_timeout"), {"lock_timeout": f"{round(lock_seconds * 1000)}ms"})
        yield


def _drop(conn: psycopg.Connection[Any], table: str, old: Sequence[Partition], before: UUID) -> None:
    """Drop days and record it in the same transaction, so that no consumer takes their events for new."""
    schema = table.rpartition(".")[0]
    for partition in old:
        name = f"{schema}.{partition.name}" if schema else partition.name
        conn.execute(sql.compose("drop_inbox_day", partition=sql.table(name)))
    names = ", ".join(partition.name for partition in old)
    note = {"action": "dropped", "before": before, "detail": names}
    conn.execute(sql.compose("add_journal", journal=sql.journal(table)), note)


def _prune(conn: psycopg.Connection[Any], table: str, before: datetime, lock_seconds: float) -> int:
    statement = sql.compose("prune_inbox_default", partition=sql.table(f"{table}_default"))
    total, deleted = 0, -1
    while deleted:
        with _bounded(conn, lock_seconds):
            deleted = conn.execute(statement, {"before": before}).rowcount
        total += deleted
    return total


def forget(
    conn: psycopg.Connection[Any],
    table: str,
    consumer: str,
    reason: str,
    *,
    ids: Sequence[UUID] = (),
    since: datetime | None = None,
    until: datetime | None = None,
) -> int:
    """Delete claims so that their events are handled again, and record the reason in the journal.

    Either `ids`, or all events whose UUIDv7 is from `since` to before `until`. In the caller's transaction.
    Returns how many there were.
    """
    if ids:
        values: dict[str, object] = {"consumer": consumer, "ids": list(ids)}
        forgotten = conn.execute(sql.compose("forget_ids", inbox=sql.table(table)), values).rowcount
        what = f"{len(ids)} ids"
    else:
        first = first_id(since) if since else UUID(int=0)
        behind = first_id(until) if until else UUID(int=2**128 - 1)
        values = {"consumer": consumer, "first": first, "behind": behind}
        forgotten = conn.execute(sql.compose("forget_range", inbox=sql.table(table)), values).rowcount
        what = f"from {since or 'the beginning'} to {until or 'now'}"
    detail = f"{forgotten} events of {consumer} ({what}): {reason}"
    note = {"action": "forgotten", "before": None, "detail": detail}
    conn.execute(sql.compose("add_journal", journal=sql.journal(table)), note)
    return forgotten


def _day(bounds: str) -> date | None:
    match = _BOUND.search(bounds)
    return day_of(UUID(match[1])) if match else None


def _words(span: timedelta) -> str:
    hours = span / timedelta(hours=1)
    return f"{hours / 24:g} days" if hours % 24 == 0 and hours >= 24 else f"{hours:g} hours"
