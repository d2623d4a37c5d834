"""The relay carries every row once and in order, whoever comes and goes."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from fix_relay import NewRelayed, Relayed
from outbox_pipeline import outbox, relay
from outbox_pipeline.relay.wakeup import PollingDelay, Waiter
from waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.stack


def test_everything_arrives_once_and_the_outbox_is_empty(relayed: Relayed) -> None:
    relayed.write(3000)
    counters = relayed.until_empty("--batch", "300")
    assert counters["published"] == 3000
    assert counters["taken"] == 4
    assert relayed.left() == 0
    assert relayed.ledger().clean
    assert relayed.until_empty()["published"] == 0


def test_four_workers_share_the_shards(relayed: Relayed) -> None:
    relayed.write(4000)
    counters = relayed.until_empty("--workers", "4")
    assert counters["published"] == 4000
    assert relayed.ledger().clean


def test_without_transactions_everything_arrives_too(relayed: Relayed) -> None:
    relayed.write(2000)
    assert relayed.until_empty("--transactions", "off")["published"] == 2000
    assert relayed.ledger().clean


def test_archive_keeps_the_rows_in_the_history(new_relayed: NewRelayed) -> None:
    relayed = new_relayed(archive=True)
    relayed.write(500)
    relayed.until_empty("--mode", "archive")
    assert relayed.left() == 0
    with relayed.connect() as conn:
        found = conn.execute("SELECT id::text FROM public.outbox_history").fetchall()
    assert {event_id for (event_id,) in found} == relayed.written.keys()
    assert relayed.ledger().clean


@pytest.mark.slow
def test_late_commits_are_neither_skipped_nor_overtaken(relayed: Relayed) -> None:
    """Writers that take turns on an aggregate, long transactions, rollbacks: positions have gaps."""
    with relayed.connect() as conn:
        conn.execute("CREATE TABLE turn (aggregate text PRIMARY KEY, version int NOT NULL)")
        conn.execute("INSERT INTO turn SELECT 'k' || g, 0 FROM generate_series(0, 19) AS g")
    process = relayed.start("--workers", "2", "--batch", "50")
    lock = threading.Lock()

    def write(seed: int) -> None:
        import random

        rng = random.Random(seed)
        with psycopg.connect(relayed.site.database.conninfo) as conn:
            for _ in range(150):
                key = f"k{rng.randrange(20)}"
                row = conn.execute(
                    "UPDATE turn SET version = version + 1 WHERE aggregate = %s RETURNING version", (key,)
                ).fetchone()
                assert row is not None
                event = outbox.event(
                    aggregate_type="order", aggregate_id=key, event_type="Counted", payload={"number": row[0]}
                )
                outbox.add_many(conn, [event])
                time.sleep(rng.choice((0, 0, 0.002, 0.05 if seed == 0 else 0.001)))
                if rng.random() < 0.1:
                    conn.rollback()
                    continue
                conn.commit()
                with lock:
                    relayed.written[str(event.id)] = (key, row[0])

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(5)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    relayed.await_left(0)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, output
    assert len(relayed.written) > 500
    assert relayed.ledger().clean


def test_sigterm_finishes_what_is_on_its_way(relayed: Relayed) -> None:
    relayed.write(20_000)
    process = relayed.start("--workers", "2", "--batch", "200")
    relayed.await_left(15_000)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, output
    left = relayed.left()
    assert left > 0
    arrived = relayed.read()
    assert len(arrived) == 20_000 - left  # nothing that was published is still in the outbox
    relayed.until_empty()
    assert relayed.ledger().clean


def test_a_commit_wakes_a_relay_that_looks_once_an_hour(
    relayed: Relayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PollingDelay, "missed", lambda pace: setattr(pace, "seconds", 3600.0))
    stop, waiter = threading.Event(), Waiter()
    with ThreadPoolExecutor(1) as pool:
        settings = relay.RelaySettings()
        run = pool.submit(relay.run, relayed.definition, settings, say=print, stop=stop, waiter=waiter)
        try:
            for _ in range(3):
                relayed.write(1)
                relayed.await_left(0)
        finally:
            stop.set()
            waiter.wake()
    assert run.result().published == 3
    assert relayed.ledger().clean
