"""Keep an idle slot moving: the ticker sends one logical message each interval, from outside the connector.

A slot's `confirmed_flush_lsn` advances only when the connector delivers something. On a database
where only other tables change nothing is delivered, so the server keeps all WAL since the last
event. A tick is something to deliver. It comes from outside because Debezium's own
`heartbeat.interval.ms` can store an offset of type BEGIN, and a restart from one loses rows
(Debezium dbz#76; still so in 3.7.1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from outbox_connectors import backoff
from outbox_pipeline.errors import Unreachable
from outbox_pipeline.servers import logical_messages, lsn, slots

APPLICATION_NAME = slots.TICKER_APPLICATION  # in pg_stat_activity, by which others see a ticker
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0


@dataclass(slots=True)
class Ticks:
    """Counts of the ticks that a ticker has sent."""

    sent: int = 0
    failed: int = 0
    last_lsn: str = ""


def pause_after(failures: int, interval_seconds: float) -> float:
    """Return how long to wait after this many failures in a row: doubling, at most a tick or 30 s."""
    longest = min(LONGEST_PAUSE_SECONDS, max(interval_seconds, FIRST_PAUSE_SECONDS))
    return backoff.delay(failures, FIRST_PAUSE_SECONDS, longest)


def next_due(due: float, now: float, interval_seconds: float) -> float:
    """Return when the next tick is due. Ticks that were missed are left out, not sent in a burst."""
    return due + interval_seconds if due + interval_seconds > now else now + interval_seconds


def tick(conn: psycopg.Connection[Any], prefix: str) -> str:
    """Send one tick and return its position as `X/Y`. In autocommit it is written at once."""
    return lsn.text(logical_messages.emit(conn, prefix))


def run(
    connect: Callable[[], psycopg.Connection[Any]],
    prefix: str,
    *,
    interval_seconds: float,
    stopped: Callable[[], bool],
    sleep: Callable[[float], None],
    clock: Callable[[], float],
    report: Callable[[str], None],
    ticks: Ticks | None = None,
    ticked: Callable[[str], None] = lambda position: None,
    why_not: Callable[[], str] = lambda: "",
) -> Ticks:
    """Tick until `stopped()`; a tick never overlaps another, and a lost connection is replaced.

    `why_not` is asked before every tick. While it gives a reason nothing is sent and no connection is
    held; `report` is called once per reason, and `why_not` is asked again at the next
    tick's time, after LONGEST_PAUSE_SECONDS at the latest.

    `connect` must return an autocommit connection and may raise Unreachable or psycopg.Error; both
    are retried for ever with a growing pause. `report` is called for the first failure in a row and
    for the recovery, not for every attempt; `ticked` gets the position of every tick. `sleep` should return
    early when a stop is asked for.
    """
    ticks = ticks or Ticks()
    conn: psycopg.Connection[Any] | None = None
    failures, withheld, due = 0, "", clock()
    try:
        while not stopped():
            reason = why_not()
            if reason or withheld:
                _report_withheld(withheld, reason, report)
                due, withheld = clock(), reason
            if reason:
                _close(conn)
                conn = None
                sleep(min(interval_seconds, LONGEST_PAUSE_SECONDS))
                continue
            try:
                conn = conn or connect()
                ticks.last_lsn = tick(conn, prefix)
            except (psycopg.Error, Unreachable) as error:
                _close(conn)
                conn = None
                failures += 1
                ticks.failed += 1
                if failures == 1:
                    report(f"no tick: {' '.join(str(error).split())}; trying again until it works")
                sleep(pause_after(failures, interval_seconds))
                continue
            if failures:
                report(f"ticking again at {ticks.last_lsn}, after {failures} failed attempts")
                failures = 0
            ticks.sent += 1
            ticked(ticks.last_lsn)
            due = next_due(due, clock(), interval_seconds)
            sleep(max(0.0, due - clock()))
    finally:
        _close(conn)
    return ticks


def _report_withheld(before: str, now: str, report: Callable[[str], None]) -> None:
    """Report a new reason once, and report when the reason no longer holds."""
    if now and now != before:
        report(f"no tick is sent: {now}")
    elif not now:
        report("ticks are sent again: the connector captures them")


def _close(conn: psycopg.Connection[Any] | None) -> None:
    if conn is not None:
        conn.close()
