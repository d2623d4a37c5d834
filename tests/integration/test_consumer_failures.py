"""What becomes of events that fail: blocked, parked, dead letters, or the consumer stops. Nothing is lost."""

from __future__ import annotations

import struct
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka.admin import NewTopic

from asking import administrator
from fix_consumer import Bench, running, write_effect
from outbox_consumers import Consumer, DeadLetterLimit, Event, Reject, RetryStrategy
from outbox_consumers.errors import Stopped, TooManyDeadLetters, UnknownEventType
from outbox_consumers.failures import dead_letter
from outbox_consumers.handlers.routes import OnFailure
from waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack

TWICE = RetryStrategy(max_attempts=2, wait=0.05, exponential_wait=0)


class Broken:
    """Numbers whose events fail, until a test mends them."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = set(numbers)
        self.calls: list[int] = []


def failing(bench: Bench, broken: Broken, on_failure: OnFailure, **settings: Any) -> Consumer:
    app = bench.app(**({"retry": TWICE} | settings))

    @app.handler("Placed", on_failure=on_failure)
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        number = event.data["n"]
        broken.calls.append(number)
        write_effect(conn, event)
        if number in broken.numbers:
            raise RuntimeError(f"broken {number}")

    return app


def letters(bench: Bench) -> list[dict[str, Any]]:
    with bench.database.connect() as conn:
        return dead_letter.find(conn, dead_letter.DeadLetterFilter(), "inbox")


def test_an_event_that_fails_too_often_becomes_a_dead_letter(bench: Bench) -> None:
    broken = Broken(3)
    for n in range(6):
        bench.send({"n": n}, partition=0, key=f"k{n}")
    bench.flush()
    with running(failing(bench, broken, "dead_letter")) as app:
        until(lambda: app.counters.processed == 5 and app.counters.dead_letters == 1)
    assert bench.effects() == [0, 1, 2, 4, 5]
    (letter,) = letters(bench)
    assert (letter["consumer"], letter["event_id"], letter["event_type"]) == (
        "billing",
        bench.sent[3],
        "Placed",
    )
    assert (letter["topic"], letter["partition"], letter["offset"]) == (bench.topic, 0, 3)
    assert (letter["key"], letter["payload"]) == (b"k3", b'{"n": 3}')
    assert letter["headers"][0] == ["id", str(bench.sent[3])]
    assert (letter["attempts"], letter["error"]) == (2, "RuntimeError: broken 3")
    assert letter["first_failed_at"] <= letter["last_failed_at"]


def test_a_rejected_event_is_a_dead_letter_at_once_and_a_duplicate_later(bench: Bench) -> None:
    app = bench.app()

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        write_effect(conn, event)
        raise Reject("never\0 ever")

    event_id = bench.send(b'{"n": 1, "odd": "\xc3\xa9"}')
    bench.send({"n": 1}, id=event_id)
    bench.flush()
    with running(app):
        until(lambda: app.counters.dead_letters == 1 and app.counters.duplicates == 1)
    (letter,) = letters(bench)
    assert letter["payload"] == b'{"n": 1, "odd": "\xc3\xa9"}'
    assert letter["error"] == "Reject: never\\x00 ever"
    assert bench.effects() == []


def test_redriven_letters_are_handled_in_order_and_once(bench: Bench) -> None:
    broken = Broken(0, 1, 2)
    for n in range(4):
        bench.send({"n": n}, key="k")
    bench.flush()
    app = failing(bench, broken, "dead_letter")
    with running(app):
        until(lambda: app.counters.dead_letters == 3 and app.counters.processed == 1)
        broken.numbers.clear()
        with bench.database.connect() as conn:
            positions = [letter["position"] for letter in letters(bench)]
            assert dead_letter.redrive(conn, positions, "inbox", rate=0) == 3
        until(lambda: app.counters.unparked == 3)
        bench.send({"n": 1}, key="k", id=bench.sent[1])
        bench.flush()
        until(lambda: app.counters.duplicates == 1)
    assert bench.effects() == [3, 0, 1, 2]
    assert letters(bench) == []
    bench.applied_once()


def test_a_redriven_letter_that_still_fails_comes_back(bench: Bench) -> None:
    broken = Broken(0)
    bench.send({"n": 0})
    bench.flush()
    app = failing(bench, broken, "dead_letter")
    with running(app):
        until(lambda: app.counters.dead_letters == 1)
        with bench.database.connect() as conn:
            dead_letter.redrive(conn, [letters(bench)[0]["position"]], "inbox", rate=10)
        until(lambda: app.counters.dead_letters == 2)
    (letter,) = letters(bench)
    assert letter["attempts"] == 2


def test_a_discarded_letter_is_gone_and_its_event_stays_seen(bench: Bench) -> None:
    broken = Broken(0)
    event_id = bench.send({"n": 0})
    bench.flush()
    app = failing(bench, broken, "dead_letter")
    with running(app):
        until(lambda: app.counters.dead_letters == 1)
        with bench.database.connect() as conn:
            assert dead_letter.discard(conn, [letters(bench)[0]["position"]], "inbox") == 1
        bench.send({"n": 0}, id=event_id)
        bench.flush()
        until(lambda: app.counters.duplicates == 1)
    assert letters(bench) == []


def test_a_parked_aggregate_waits_alone_and_keeps_its_order(bench: Bench) -> None:
    broken = Broken(2)
    for n in range(20):
        bench.send({"n": n}, partition=0, key=f"k{n % 2}")
    bench.flush()
    app = failing(bench, broken, "park", retry=RetryStrategy(wait=0.2, exponential_wait=0))
    with running(app):
        until(lambda: app.counters.parked >= 9)
        until(lambda: [n for n in bench.effects() if n % 2] == list(range(1, 20, 2)))
        assert [n for n in bench.effects() if n % 2 == 0] == [0]
        until(lambda: broken.calls.count(2) > 3)
        broken.numbers.clear()
        until(lambda: app.counters.processed == 20)
    assert [n for n in bench.effects() if n % 2 == 0] == list(range(0, 20, 2))
    assert bench.query("SELECT count(*) FROM inbox_parked") == [(0,)]
    bench.applied_once()


def test_a_parked_aggregate_waits_across_a_restart(bench: Bench) -> None:
    broken = Broken(0)
    for n in range(3):
        bench.send({"n": n}, key="k")
    bench.flush()
    retry = RetryStrategy(wait=0.2, exponential_wait=0)
    with running(failing(bench, broken, "park", retry=retry)) as app:
        until(lambda: app.counters.parked == 3)
    bench.send({"n": 3}, key="k")
    bench.flush()
    with running(failing(bench, broken, "park", retry=retry)) as heir:
        until(lambda: heir.counters.parked == 1)
        broken.numbers.clear()
        until(lambda: heir.counters.processed == 4)
    assert bench.effects() == [0, 1, 2, 3]
    bench.applied_once()


def test_a_parked_event_without_attempts_left_becomes_a_dead_letter_and_the_next_one_is_handled(
    bench: Bench,
) -> None:
    broken = Broken(0)
    for n in range(3):
        bench.send({"n": n}, key="k")
    bench.flush()
    with running(failing(bench, broken, "park")) as app:
        until(lambda: app.counters.dead_letters == 1 and app.counters.processed == 2)
    assert bench.effects() == [1, 2]
    assert letters(bench)[0]["event_id"] == bench.sent[0]


def test_stop_ends_the_consumer_which_continues_there_when_restarted(bench: Bench) -> None:
    broken = Broken(1)
    for n in range(3):
        bench.send({"n": n}, partition=0)
    bench.flush()
    with pytest.raises(Stopped, match="failed 2 times: RuntimeError: broken 1"):
        failing(bench, broken, "stop").run()
    assert bench.effects() == [0]
    broken.numbers.clear()
    with running(failing(bench, broken, "stop")) as app:
        until(lambda: app.counters.processed == 2)
    bench.applied_once()


def test_a_limiter_stops_the_consumer_when_everything_fails(bench: Bench) -> None:
    broken = Broken(*range(40))
    bench.send_many(40)
    app = failing(bench, broken, "dead_letter", dead_letter_limit=DeadLetterLimit(in_a_row=5))
    with pytest.raises(TooManyDeadLetters, match="5 events in a row became dead letters"):
        app.run()
    assert len(letters(bench)) == 5
    broken.numbers.clear()
    with running(bench.applying()) as heir:
        until(lambda: heir.counters.processed == 35)


def test_unknown_types_as_dead_letters_or_as_a_reason_to_stop(bench: Bench) -> None:
    bench.send({"n": 0}, kind="Unheard", partition=0)
    bench.send({"n": 1}, partition=0)
    bench.flush()
    with pytest.raises(UnknownEventType, match="no handler for <Event Unheard"):
        bench.applying(unknown="fail").run()
    with running(bench.applying(unknown="dead_letter")) as app:
        until(lambda: app.counters.processed == 1 and app.counters.dead_letters == 1)
    assert letters(bench)[0]["error"] == "Reject: no handler for this event type"


def test_a_copy_of_a_dead_letter_goes_to_its_topic_before_the_offset_is_stored(bench: Bench) -> None:
    topic = f"{bench.topic}.dead"
    broken = Broken(1)
    event_id = bench.send({"n": 0}, partition=2)
    bad = bench.send(b'{"n": 1}', partition=2, key="k1")
    bench.flush()
    limit = DeadLetterLimit(in_a_row=1)  # of letters that are written, not of those the topic did not take
    app = failing(bench, broken, "dead_letter", dead_letter=topic, dead_letter_limit=limit)
    with running(app):
        until(lambda: app.counters.failures >= 4)  # the topic is not there yet: nothing is given up
        assert letters(bench) == []
        admin = administrator({"bootstrap.servers": bench.server.kafka})
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE_SECONDS)
        until(lambda: app.counters.dead_letters == 1)
    reader = KafkaConsumer(
        {"bootstrap.servers": bench.server.kafka, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    reader.subscribe([topic])
    (record,) = until(lambda: reader.consume(1, 1))
    reader.close()
    headers = dict(record.headers() or [])
    assert (record.key(), record.value()) == (b"k1", b'{"n": 1}')
    assert headers["id"] == str(bad).encode()
    assert headers["kafka_dlt-original-topic"] == bench.topic.encode()
    assert headers["kafka_dlt-original-partition"] == struct.pack("!i", 2)
    assert headers["kafka_dlt-original-offset"] == struct.pack("!q", 1)
    assert headers["kafka_dlt-exception-fqcn"] == b"builtins.RuntimeError"
    assert headers["kafka_dlt-exception-message"] == b"broken 1"
    assert event_id in bench.sent


def test_a_bad_event_in_a_large_batch_costs_few_single_transactions(bench: Bench) -> None:
    broken = Broken(700)
    app = bench.app(retry=TWICE)

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        write_effect(conn, event)
        if event.data["n"] in broken.numbers:
            raise Reject("never")

    for n in range(1000):
        bench.send({"n": n}, partition=0)
    bench.flush()
    with running(app):
        until(lambda: app.counters.processed == 999)
    assert app.counters.singles <= 100
    assert bench.effects() == [n for n in range(1000) if n != 700]
