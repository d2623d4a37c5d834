"""The durable inbox with Kafka: events are stored at once, without duplicates, and handled once, later."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaException, TopicPartition

from durable_lab import Lab, new_inbox, running_workers, write_effect
from fix_consumer import Bench
from forms import sized
from outbox_consumers import Event
from outbox_consumers.durable import DurableInbox, steps
from outbox_consumers.inbox import schema
from waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack

KILLS = sized(4, 40)


@pytest.fixture
def lab(bench: Bench, tmp_path: Path) -> Lab:
    with psycopg.connect(bench.dsn, autocommit=True) as conn:
        schema.apply(conn, steps())
    return Lab(bench.dsn, tmp_path, job_ids=bench.sent)


def settings(bench: Bench) -> dict[str, Any]:
    kafka = {
        "bootstrap.servers": bench.server.kafka,
        "group.id": bench.topic,
        "group.instance.id": "receiver",  # so that the next receiver replaces it at once
        "session.timeout.ms": 45_000,
        "auto.commit.interval.ms": 200,
    }
    return {"kafka": kafka, "topics": [bench.topic]}


@contextmanager
def receiving(durable: DurableInbox) -> Iterator[None]:
    thread = threading.Thread(target=durable.receive, daemon=True)
    thread.start()
    try:
        yield
    finally:
        durable.stop()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive(), "the receiver does not stop"


def committed(bench: Bench) -> int:
    """Return the sum of the offsets that the group has committed."""
    client = KafkaConsumer({"bootstrap.servers": bench.server.kafka, "group.id": bench.topic})
    try:
        places = [TopicPartition(bench.topic, number) for number in range(bench.partitions)]
        return sum(max(0, place.offset) for place in client.committed(places, timeout=PATIENCE_SECONDS))
    except KafkaException:
        return -1  # the coordinator is still starting
    finally:
        client.close()


def test_offsets_are_committed_while_handlers_are_running(bench: Bench, lab: Lab) -> None:
    """A slow handler delays neither the receiver nor its offsets."""
    durable, released = new_inbox(lab.dsn, **settings(bench)), threading.Event()

    @durable.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        released.wait(2 * PATIENCE_SECONDS)
        write_effect(conn, event)

    bench.send_many(300)
    with running_workers(durable, workers=2), receiving(durable):
        until(lambda: committed(bench) == 300)
        assert lab.effects() == []
        released.set()
        until(lambda: lab.left() == 0)
    lab.assert_applied_once_in_order()


def test_events_that_are_delivered_again_are_stored_once(bench: Bench, lab: Lab) -> None:
    """Each event three times, in random order, of three types that one statement stores."""
    durable = new_inbox(lab.dsn, **settings(bench))
    for kind in ("Placed", "Paid", "Shipped"):
        durable.handler(kind)(write_effect)
    for number in range(900):
        key, kind = f"k{number % 20}", ("Placed", "Paid", "Shipped")[number % 3]
        bench.send({"n": number}, kind=kind, key=key, partition=number % 20 % 3)
    copies = list(enumerate(bench.sent)) * 2
    random.Random(5).shuffle(copies)
    for number, one in copies:
        kind = ("Placed", "Paid", "Shipped")[number % 3]
        bench.send({"n": number}, kind=kind, key=f"k{number % 20}", id=one, partition=number % 20 % 3)
    bench.flush()
    del bench.sent[900:]
    with receiving(durable), running_workers(durable, workers=2):
        until(lambda: committed(bench) == 2700)
        until(lambda: lab.left() == 0)
    lab.assert_applied_once_in_order()


def test_receiving_takes_few_round_trips(bench: Bench, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    durable = new_inbox(lab.dsn, **settings(bench))
    trips: list[str] = []
    for kind in ("Placed", "Paid"):
        durable.handler(kind)(write_effect)
    for number in range(5000):
        bench.send({"n": number}, kind=("Placed", "Paid")[number % 2], key=f"k{number % 50}")
    bench.flush()
    execute = psycopg.Cursor.execute

    def counted(self: Any, *arguments: Any, **named: Any) -> Any:
        if threading.current_thread() is receiver:
            trips.append(str(arguments[0]))
        return execute(self, *arguments, **named)

    receiver = threading.Thread(target=durable.receive, daemon=True)
    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    receiver.start()
    until(lambda: lab.query("SELECT count(*) FROM inbox_job") == [(5000,)])
    durable.stop()
    receiver.join(PATIENCE_SECONDS)
    puts = [place for place, statement in enumerate(trips) if "Queue jobs" in statement]
    count = puts[-1] + 1 - puts[0] + 4  # statements before the first batch depend on timing
    print(f"{count / 5000:.4f} round trips per event")
    assert count / 5000 <= 0.1


@pytest.mark.parametrize("step", ["enqueue", "received", "store"])
@pytest.mark.slow
def test_a_receiver_killed_at_any_step(bench: Bench, lab: Lab, step: str) -> None:
    bench.send_many(1000)
    plan = {"receive": True, "settings": settings(bench) | {"batch_size": 100}, "kind": "Placed"}
    for times in (1, 4):
        killed = lab.worker(step=step, times=times, **plan)
        assert killed.exit_code() == -signal.SIGKILL, killed.log_text()
    durable = new_inbox(lab.dsn, **settings(bench) | {"batch_size": 100})
    durable.handler("Placed", together=True)(write_effect)
    with receiving(durable), running_workers(durable, workers=2):
        until(lambda: len(lab.effects()) >= 1000 and committed(bench) == 1000)
    lab.assert_applied_once_in_order()


@pytest.mark.slow
def test_receiver_and_workers_killed_at_random(bench: Bench, lab: Lab) -> None:
    """Processes of one fleet killed at random: by ids none lost, none twice, order kept."""
    plan = {"fleet": 2, "settings": settings(bench) | {"batch_size": 50}, "kind": "Placed"}
    fleet, chance = lab.worker(**plan), random.Random(7)
    try:
        for _ in range(KILLS):
            first = len(bench.sent)
            for number in range(first, first + 250):
                bench.send({"n": number}, key=f"k{number % 20}")
            bench.flush()
            enough = len(bench.sent) - 200
            until(partial(applied, lab, enough))
            fleet.kill_child(chance)
        until(lambda: len(lab.effects()) >= len(bench.sent))
        assert fleet.stop() == 0, fleet.log_text()
    finally:
        fleet.kill()
    lab.assert_applied_once_in_order()
    assert lab.left() == 0


def applied(lab: Lab, count: int) -> bool:
    return len(lab.effects()) >= count
