"""Whether claiming ids is slower in an inbox with 30 days of events than in an empty one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import psycopg
from uuid_utils.compat import uuid7

from benchmarks.figures import Figure, Goal
from benchmarks.rounds import Log, rotated
from benchmarks.servers import Servers
from outbox_consumers import Event
from outbox_consumers.inbox import retention, schema
from outbox_consumers.inbox.claims import Inbox, cursor_of

DATABASE = "billing"
BATCHES, BATCH = 20, 1000
DAYS = 30
FRESH_WORK, KNOWN_WORK = "claiming fresh ids", "claiming handled ids"
EMPTY, FULL = "an empty inbox", "an inbox of 30 days"
TABLES = {EMPTY: "inbox_empty", FULL: "inbox_full"}

GOALS = (Goal(FRESH_WORK, FULL, at_least=1 / 1.3),)

# UUIDv7 ids (RFC 9562), spread evenly over the days before now, in the order of their time.
RECORD_ID = """
INSERT INTO inbox_full (event_id, consumer)
SELECT (lpad(to_hex(ms), 12, '0') || '7' || substr(noise, 1, 3) || '8' || substr(noise, 4, 15))::uuid, 'bench'
FROM generate_series(1, %(rows)s) AS n,
     LATERAL (SELECT %(first)s + (%(last)s - %(first)s) * n / %(rows)s AS ms, md5(n::text) AS noise) AS id
"""
SAMPLE = (
    "SELECT event_id FROM inbox_full TABLESAMPLE SYSTEM (%(percent)s) WHERE consumer = 'bench' LIMIT %(ids)s"
)


def measure(servers: Servers, rounds: int, rows: int, log: Log) -> list[Figure]:
    """Claim ids in both inboxes in turn, a thousand per transaction, each flushed before the next."""
    rates: dict[tuple[str, str], list[float]] = {}
    with psycopg.connect(servers.dsn(DATABASE), autocommit=True) as conn:
        _prepare(conn)
        log(f"inbox: inserting {rows:,} events")
        _fill(conn, rows)
        known = {FULL: _sample(conn, rows)}
        for number in range(rounds):
            for variant in rotated((EMPTY, FULL), number):
                log(f"inbox, round {number + 1} of {rounds}: {variant}")
                if variant == EMPTY:
                    conn.execute("TRUNCATE inbox_empty")
                conn.execute("CHECKPOINT")
                inbox = Inbox("bench", TABLES[variant])
                fresh = [Event("Bench", id=uuid7()) for _ in range(BATCHES * BATCH)]
                rates.setdefault((FRESH_WORK, variant), []).append(_claim(conn, inbox, fresh))
                repeated = known.get(variant, fresh)
                rates.setdefault((KNOWN_WORK, variant), []).append(_claim(conn, inbox, repeated))
    return [
        Figure(work, variant, tuple(found), "ids/s", more_is_better=True, reference=variant == EMPTY)
        for (work, variant), found in sorted(
            rates.items(), key=lambda item: (item[0][0], item[0][1] != EMPTY)
        )
    ]


def _claim(conn: psycopg.Connection, inbox: Inbox, events: Sequence[Event]) -> float:
    """Claim the events as the consumer's loop does. Returns ids per second."""
    cursor = cursor_of(conn)
    inbox.careful = False
    started = time.perf_counter()
    for start in range(0, len(events), BATCH):
        cursor.execute("BEGIN")
        inbox.claim(cursor, events[start : start + BATCH])
        cursor.execute("COMMIT")
    return len(events) / (time.perf_counter() - started)


def _prepare(conn: psycopg.Connection) -> None:
    for table in TABLES.values():
        schema.apply(conn, schema.steps(table))
        today = datetime.now(UTC).date()
        for ago in range(2, DAYS + 2):
            conn.execute(retention.create_day(table, today - timedelta(days=ago)))


def _fill(conn: psycopg.Connection, rows: int) -> None:
    now = int(time.time() * 1000)
    first = now - DAYS * 86_400_000
    conn.execute("SET synchronous_commit = off")
    conn.execute(RECORD_ID.encode(), {"rows": rows, "first": first, "last": now})
    conn.execute("RESET synchronous_commit")
    conn.execute("VACUUM ANALYZE inbox_full")


def _sample(conn: psycopg.Connection, rows: int) -> list[Event]:
    ids = BATCHES * BATCH
    percent = min(100.0, 300 * ids / rows)
    found = conn.execute(SAMPLE.encode(), {"percent": percent, "ids": ids}).fetchall()
    return [Event("Bench", id=row[0]) for row in found]
