"""The Kafka side: rebalances, signals, kills, callbacks that raise; no event may be skipped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from uuid_utils.compat import uuid7

from fix_consumer import Bench, running, write_effect
from fix_stack import Stack
from outbox_consumers import Event
from outbox_consumers.errors import FencedConsumer
from waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack

APP = """
import os, time
from outbox_consumers import Consumer

app = Consumer(
    "billing",
    kafka={
        "bootstrap.servers": os.environ["BENCH_KAFKA"],
        "group.id": os.environ["BENCH_TOPIC"],
        "session.timeout.ms": 6000,
        "group.instance.id": "one",  # a restarted process gets its partitions back at once
    },
    dsn=os.environ["BENCH_DSN"],
    topics=[os.environ["BENCH_TOPIC"]],
    batch_size=int(os.environ.get("BENCH_BATCH", "50")),
)

@app.handler("Placed")
def placed(conn, event):
    time.sleep(float(os.environ.get("BENCH_SLEEP", "0")))
    conn.execute(
        "INSERT INTO effect (event_id, consumer, key, n) VALUES (%s, 'billing', %s, %s)",
        (event.id, event.key, event.data["n"]),
    )
"""


@contextmanager
def process(bench: Bench, folder: Path, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """Run the consumer as users do, with `outboxctl consume` in a process of its own."""
    (folder / "billing_app.py").write_text(APP)
    command = [str(Path(sys.executable).parent / "outboxctl"), "--json", "consume", "billing_app:app"]
    settings = bench.environ
    child = subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | settings | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def test_sigterm_finishes_the_current_transaction_and_commits_its_offsets(
    bench: Bench, tmp_path: Path
) -> None:
    bench.send_many(500)
    with process(bench, tmp_path, BENCH_SLEEP="0.02") as child:
        until(lambda: len(bench.effects()) >= 100)
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=PATIENCE_SECONDS)
    assert child.returncode == 0, err
    assert '"processed"' in out
    done = len(bench.effects())
    assert done < 500
    with running(bench.applying(kafka={"group.id": bench.topic, "group.instance.id": "one"})) as heir:
        until(lambda: heir.counters.processed == 500 - done)
    assert heir.counters.duplicates == 0  # the offsets were exact
    bench.applied_once()


def test_a_callback_that_raises_skips_nothing(bench: Bench) -> None:
    """The client drops the records it has just taken when a callback raises, so ours never do."""
    calls: list[str] = []

    def raising(name: str) -> Any:
        def callback(*_: object) -> None:
            calls.append(name)
            raise RuntimeError(name)

        return callback

    app = bench.applying(
        kafka={
            "stats_cb": raising("stats"),
            "error_cb": raising("error"),
            "on_commit": raising("commit"),
            "statistics.interval.ms": 20,
            "auto.commit.interval.ms": 50,
        }
    )
    with running(app):
        for n in range(300):
            bench.send({"n": n}, key=str(n % 20))
            time.sleep(0.002)
        bench.flush()
        until(lambda: app.counters.processed == 300)
    assert {"stats", "commit"} <= set(calls)
    bench.applied_once()


def test_members_of_an_eager_group_that_join_and_leave_lose_and_repeat_nothing(bench: Bench) -> None:
    """The storm over a group has the other two protocols."""
    settings = {"group.id": f"{bench.topic}.g", "partition.assignment.strategy": "range"}
    bench.send_many(1500)
    first = bench.applying(batch_size=50, kafka=settings)
    with running(first):
        until(lambda: first.counters.processed > 100)
        second = bench.applying(batch_size=50, kafka=settings)
        with running(second):
            for n in range(300):
                bench.send({"n": 1500 + n}, key=str(n % 20))
                time.sleep(0.01)
            bench.flush()
        until(lambda: len(bench.effects()) == 1800)
    bench.applied_once()
    bench.applied_in_order()


@pytest.mark.parametrize("protocol", ["eager", "cooperative", "consumer"])
def test_offsets_are_committed_when_partitions_are_revoked(bench: Bench, protocol: str) -> None:
    """The heir repeats nothing: not even the timer of the commits has to come first."""
    settings: dict[str, Any] = {"group.id": f"{bench.topic}.g", "auto.commit.interval.ms": 3_600_000}
    settings |= {
        "eager": {"partition.assignment.strategy": "range"},
        "cooperative": {},
        "consumer": {"group.protocol": "consumer"},
    }[protocol]
    bench.send_many(300)
    first, heir = bench.applying(kafka=settings), bench.applying(kafka=settings)
    with running(first):
        until(lambda: first.counters.processed == 300)
        with running(heir):
            until(lambda: first.counters.revoked > 0)
            bench.send_many(300, keys=100)
            until(lambda: first.counters.processed + heir.counters.processed == 600)
            until(lambda: heir.counters.processed > 0)
    assert (first.counters.duplicates, heir.counters.duplicates) == (0, 0)
    bench.applied_once()


def test_records_of_an_aborted_transaction_are_not_handled(bench: Bench) -> None:
    producer = Producer({"bootstrap.servers": bench.server.kafka, "transactional.id": bench.topic})
    producer.init_transactions()
    headers: list[tuple[str, str | bytes | None]] = [("event_type", b"Placed")]
    app = bench.applying()
    with running(app):
        for n in range(6):
            producer.begin_transaction()
            event_id = uuid7()
            producer.produce(
                bench.topic, json.dumps({"n": n}), "k", headers=[("id", str(event_id).encode()), *headers]
            )
            if n % 2:
                producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                bench.sent.append(event_id)
        until(lambda: app.counters.processed == 3)
    assert bench.effects() == [0, 2, 4]
    bench.applied_once()


def test_a_member_whose_static_id_is_taken_ends_with_one_clear_line(bench: Bench) -> None:
    settings = {"group.id": f"{bench.topic}.g", "group.instance.id": "one", "heartbeat.interval.ms": 300}
    bench.send_many(10)
    old, new = bench.applying(kafka=settings), bench.applying(kafka=settings)
    members = ExitStack()
    members.enter_context(running(old))
    until(lambda: old.counters.processed == 10)
    with running(new):
        bench.send_many(10)
        until(lambda: old.counters.processed + new.counters.processed == 20)
        until(lambda: not old.health().healthy, "the old member learns of it at its next heartbeat")
    with pytest.raises(FencedConsumer, match="another process uses the same group"):
        members.close()
    bench.applied_once()


def test_a_handler_longer_than_the_poll_interval_costs_the_partition_but_no_event(bench: Bench) -> None:
    app = bench.app(kafka={"max.poll.interval.ms": 2000, "session.timeout.ms": 2000})
    slept: list[int] = []

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        if not slept:
            slept.append(1)
            time.sleep(3)
        write_effect(conn, event)

    bench.send_many(20)
    with running(app):
        until(lambda: app.counters.processed == 20)
        until(lambda: app.counters.evictions >= 1)
        bench.send({"n": 20})
        bench.flush()
        until(lambda: app.counters.processed == 21)
    bench.applied_once()


def test_a_partition_held_for_long_is_paused_and_comes_back(bench: Bench) -> None:
    app = bench.app(batch_size=10)
    broken = True

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        if broken and event.data["n"] == 0:
            raise RuntimeError("broken")
        write_effect(conn, event)

    for n in range(200):
        bench.send({"n": n}, partition=n % 2)
    bench.flush()
    with running(app):
        until(lambda: app.counters.processed == 100 and app.counters.failures > 5)
        broken = False
        until(lambda: app.counters.processed == 200)
    assert [n for n in bench.effects() if n % 2 == 0] == list(range(0, 200, 2))
    bench.applied_once()


def test_with_the_consumer_protocol_a_member_stops_while_kafka_accepts_no_commits(bench: Bench) -> None:
    """The client has no session timer there: a member that is cut off would go on for ever."""
    settings = {"group.protocol": "consumer", "auto.commit.interval.ms": 2500}
    app = bench.applying(kafka=settings, commit_timeout=0.5)
    with running(app):
        bench.send({"n": 0})
        bench.flush()
        until(lambda: app.counters.processed == 1, "it has joined")
        for n in range(1, 60):
            bench.send({"n": n}, key=str(n))
            bench.flush()
            time.sleep(0.05)
        until(lambda: app.counters.processed == 60)
    assert app.counters.stalls >= 1
    bench.applied_once()


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_a_member_ends_without_its_broker(
    bench: Bench, broker: Stack, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    """An offset waits to be committed when the broker falls silent: the client would wait for it."""
    app = bench.app(kafka={"group.protocol": protocol})
    taken, go_on = threading.Event(), threading.Event()

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        taken.set()
        assert go_on.wait(PATIENCE_SECONDS)
        write_effect(conn, event)

    bench.send({"n": 1})
    bench.flush()
    with running(app):
        assert taken.wait(PATIENCE_SECONDS)
        with broker.frozen("kafka"):
            go_on.set()
            until(lambda: app.counters.processed == 1)
            app.stop()
            until(lambda: "leaves the group when its session times out" in caplog.text)
    bench.applied_once()
