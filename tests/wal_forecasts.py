"""Compare a forecast with what came, in bytes of WAL.

A forecast is `seconds left` at a rate of `bytes a second`; their product is a position in the WAL, and the
slot's end has one too. So the comparison says nothing about the speed of the machine.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import psycopg

from outbox_pipeline.watch.forecast import rates_of
from outbox_pipeline.watch.history import History
from outbox_pipeline.watch.verdict import SecondsLeft, Verdict, VerdictKey

# A checkpoint comes every 16 MB, and it may be the one or the next that ends the slot: little beside the cap.
SETTINGS = {"max_slot_wal_keep_size": "256MB", "max_wal_size": "32MB"}


@dataclass(frozen=True, slots=True)
class Foretold:
    """Where in the WAL a slot's end was foreseen, and from where."""

    seen_from: int
    earliest: float
    expected: float

    @classmethod
    def of(cls, history: History, left: SecondsLeft | None) -> Foretold | None:
        """Take the forecast that goes with the newest point of a history; None where there is none."""
        rate = rates_of(history.buckets, history.points).rate
        wal = history.points[-1].wal
        if not rate or wal is None or left is None or left.earliest is None or left.expected is None:
            return None
        return cls(wal, wal + rate * left.earliest, wal + rate * left.expected)

    def check(self, began: int, ended: int) -> None:
        """Fail unless `expected` is within 20 % of the way from `began` to `ended`, and `earliest` not later.

        An end is known to a look, which is up to two rounds of writing.
        """
        way, mib = ended - began, 1024 * 1024
        print(
            f"ended after {way / mib:.0f} MB; seen from {(self.seen_from - began) / mib:.0f} MB: earliest "
            f"{(self.earliest - began) / mib:.0f} MB, expected {(self.expected - began) / mib:.0f} MB"
        )
        assert abs(self.expected - ended) <= 0.2 * way
        assert self.earliest <= ended + 0.02 * way


def pause(verdict: Verdict) -> None:
    """Wait between two rounds; longer once the cap is passed and a checkpoint is due."""
    time.sleep(0.2 if verdict.key is VerdictKey.RESCUE_WINDOW else 0.1)


def write(conn: psycopg.Connection[Any], megabytes: int) -> int:
    """Write so much WAL that nobody decodes anything from, and say where it ends."""
    conn.execute(
        "SELECT count(pg_logical_emit_message(FALSE, 'burn', repeat('y', 100000)))"
        " FROM generate_series(1, %s)",
        (megabytes * 10,),
    )
    row = conn.execute("SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint").fetchone()
    assert row is not None
    return int(row[0])
