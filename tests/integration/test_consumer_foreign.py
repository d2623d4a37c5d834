"""Whatever a stranger writes into a record becomes an effect or a dead letter, and the next one follows."""

from __future__ import annotations

import logging
import random
from typing import Any
from uuid import UUID

import psycopg
import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Message, TopicPartition
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from uuid_utils.compat import uuid7

from fix_consumer import QUICK, Bench, create_topic, running, write_effect
from outbox_connectors.record_headers import read_headers
from outbox_consumers import Consumer, DurableInbox, Event, Reject, RetryStrategy
from outbox_consumers.durable import steps
from outbox_consumers.failures import dead_letter
from outbox_consumers.failures.parked import queue_of
from outbox_consumers.identity import position_id
from outbox_consumers.inbox.schema import apply
from outbox_consumers.processes.json_log import JsonLines
from raw_records import NOT_UTF8, RawRecord, write_raw
from waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack

LONG_KEY = random.Random(1).randbytes(3000).hex().encode()
UNREADABLE = "Reject: the headers of the record cannot be read: the name of one is not UTF-8"


def event(n: int, *headers: tuple[bytes, bytes | None], key: bytes = b"k", value: bytes = b"") -> RawRecord:
    usual = [(b"id", str(uuid7()).encode()), (b"event_type", b"Placed")]
    return RawRecord(value or b'{"n": %d}' % n, key, [*usual, *headers])


def write(bench: Bench, *records: RawRecord) -> None:
    write_raw(bench.server.kafka, bench.topic, records)


def letters(bench: Bench) -> list[dict[str, Any]]:
    with bench.database.connect() as conn:
        return dead_letter.find(conn, dead_letter.DeadLetterFilter(), "inbox")


def committed(bench: Bench) -> int:
    client = KafkaConsumer({"bootstrap.servers": bench.server.kafka, "group.id": f"{bench.topic}.billing"})
    (place,) = client.committed([TopicPartition(bench.topic, 0)], timeout=PATIENCE_SECONDS)
    client.close()
    return int(place.offset)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)


@pytest.fixture
def json_lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Write every line as JSON too, as `consume --log-format json` does."""
    caplog.handler.setFormatter(JsonLines())
    caplog.set_level(logging.INFO)
    return caplog


def test_a_header_name_that_is_not_utf_8_makes_a_dead_letter(
    bench: Bench, traced: None, json_lines: pytest.LogCaptureFixture
) -> None:
    write(bench, event(1), event(2, (NOT_UTF8, b"x")), event(3))
    with running(bench.applying()) as app:
        until(lambda: app.counters.processed == 2 and app.counters.dead_letters == 1)
    assert bench.effects() == [1, 3]
    assert committed(bench) == 3
    (letter,) = letters(bench)
    assert letter["event_id"] == UUID(bytes=position_id(bench.topic, 0, 1))
    assert (letter["error"], letter["headers"], letter["payload"]) == (UNREADABLE, [], b'{"n": 2}')
    assert "dead letter <Event" in json_lines.text


def test_it_is_the_same_dead_letter_when_kafka_delivers_it_again(bench: Bench) -> None:
    write(bench, event(1, (NOT_UTF8, b"x")))
    with running(bench.applying()) as app:
        until(lambda: app.counters.dead_letters == 1)
    with running(bench.applying(kafka={"group.id": f"{bench.topic}.again"})) as again:
        until(lambda: again.counters.duplicates == 1)
    assert len(letters(bench)) == 1


def test_a_batch_of_such_records_only_is_stored(bench: Bench) -> None:
    write(bench, *(event(n, (NOT_UTF8, None)) for n in range(40)), event(40))
    with running(bench.applying()) as app:
        until(lambda: app.counters.processed == 1 and app.counters.dead_letters == 40)
    assert committed(bench) == 41


def test_its_copy_reaches_the_topic_of_dead_letters(bench: Bench) -> None:
    copies = create_topic(bench.server, f"{bench.topic}.dead")
    write(bench, event(1, (NOT_UTF8, b"x")))
    with running(bench.applying(dead_letter=copies)) as app:
        until(lambda: app.counters.dead_letters == 1)
    copy = first_of(bench, copies)
    headers = dict(read_headers(copy) or [])
    assert copy.value() == b'{"n": 1}'
    assert headers["kafka_dlt-original-topic"] == bench.topic.encode()
    assert headers["outbox_event_id"] == str(letters(bench)[0]["event_id"]).encode()


def first_of(bench: Bench, topic: str) -> Message:
    client = KafkaConsumer({"bootstrap.servers": bench.server.kafka, "group.id": topic})
    client.assign([TopicPartition(topic, 0, 0)])
    message = client.poll(PATIENCE_SECONDS)
    client.close()
    assert message is not None
    return message


def test_a_redriven_one_comes_back_with_its_id(bench: Bench) -> None:
    write(bench, event(1, (NOT_UTF8, b"x")))
    with running(bench.applying()) as app:
        until(lambda: app.counters.dead_letters == 1)
        (letter,) = letters(bench)
        with bench.database.connect() as conn:
            dead_letter.redrive(conn, [letter["position"]], "inbox", rate=0)
        until(lambda: app.counters.dead_letters == 2)
    (again,) = letters(bench)
    assert again["event_id"] == letter["event_id"]
    assert again["error"] == "Reject: the record names no event type that can be read"


def test_one_behind_a_parked_event_of_its_key_is_parked_too(bench: Bench) -> None:
    """Parking keeps bytes and id as well; when its turn comes it is given up."""
    mended: list[bool] = []
    app = bench.app(retry=QUICK)

    @app.handler("Placed", on_failure="park")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        if event.data["n"] == 1 and not mended:
            raise RuntimeError("not yet")
        write_effect(conn, event)

    write(bench, event(1))
    with running(app):
        until(lambda: app.counters.parked == 1)
        write(bench, event(2, (NOT_UTF8, b"x")), event(3, key=b"other"))
        until(lambda: app.counters.processed == 1 and app.counters.parked == 2)
        mended.append(True)
        until(lambda: app.counters.dead_letters == 1)
    assert bench.effects() == [3, 1]
    assert letters(bench)[0]["event_id"] == UUID(bytes=position_id(bench.topic, 0, 1))


def test_a_durable_inbox_continues_behind_it(bench: Bench) -> None:
    with psycopg.connect(bench.dsn, autocommit=True) as conn:
        apply(conn, steps())
    kafka = {"bootstrap.servers": bench.server.kafka, "group.id": f"{bench.topic}.billing"}
    durable = DurableInbox("billing", kafka=kafka, topics=[bench.topic], dsn=bench.dsn)

    @durable.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        write_effect(conn, event)

    write(bench, event(1), event(2, (NOT_UTF8, b"x")), event(3))
    assert durable._receiver is not None
    with running(durable._receiver) as receiver:
        until(lambda: receiver.counters.processed == 2 and receiver.counters.dead_letters == 1)
    durable._new_worker("one", kill=False).run(lambda: durable.counters.done == 2)
    assert sorted(bench.effects()) == [1, 3]
    assert letters(bench)[0]["error"] == UNREADABLE


def test_a_loop_of_ones_own_gets_it_without_headers(bench: Bench) -> None:
    write(bench, event(1, (NOT_UTF8, b"x")))
    app, seen = bench.app(), []
    with app.batches() as batches:
        for batch in batches:
            with batch.transaction() as (_, events):
                seen += [(e.type, e.record_headers, e.headers, e.payload, repr(e)) for e in events]
            app.stop()
    (found,) = seen
    assert found[:4] == ("", [], {}, b'{"n": 1}')


def test_a_redriven_letter_with_a_long_key_waits_in_the_queue_of_its_key(bench: Bench) -> None:
    app = bench.app()

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        raise Reject("never")

    write(bench, event(1, key=LONG_KEY))
    with running(app):
        until(lambda: app.counters.dead_letters == 1)
    (letter,) = letters(bench)
    with bench.database.connect() as conn:
        assert dead_letter.redrive(conn, [letter["position"]], "inbox", rate=0) == 1
    assert bench.query("SELECT queue FROM inbox_parked") == [(queue_of(dead_letter.event_of(letter)),)]


STRANGE = {
    "no key": event(1, key=b""),
    "key that is no text": event(1, key=b"\xff\0\xfe"),
    "many headers": event(1, *((b"h%d" % n, b"x") for n in range(5000))),
    "the same header again and again": event(1, *[(b"id", b"other"), (b"event_type", b"Other")] * 50),
    "header without a name": event(1, (b"", None)),
    "header with a NUL in its name": event(1, (b"a\0b", b"a\0b")),
    "values that are no text": event(
        1, (b"traceparent", b"\xff"), (b"event_version", b"\xff"), (b"headers", b"[")
    ),
    "id with a NUL": RawRecord(b'{"n": 1}', b"k", [(b"id", b"1\x002"), (b"event_type", b"Placed")]),
    "id that is no text": RawRecord(b'{"n": 1}', b"k", [(b"id", b"\xff\xfe"), (b"event_type", b"Placed")]),
    "id without an end": RawRecord(b'{"n": 1}', b"k", [(b"id", b"1" * 100_000), (b"event_type", b"Placed")]),
    "no time": RawRecord(b'{"n": 1}', b"k", [(b"event_type", b"Placed")], timestamp=-1),
    "a time long ago": RawRecord(b'{"n": 1}', b"k", [(b"event_type", b"Placed")], timestamp=1),
    "JSON without a bottom": event(1, value=b"[" * 100_000),
    "half of a surrogate pair": event(1, value=b'{"n": "\\ud800"}'),
    "key too long for an index": event(2, key=LONG_KEY),
}


@pytest.mark.parametrize("on_failure", ["dead_letter", "park"])
@pytest.mark.parametrize("record", STRANGE.values(), ids=STRANGE.keys())
def test_a_record_of_any_content_lets_the_next_one_pass(
    bench: Bench, traced: None, record: RawRecord, on_failure: Any
) -> None:
    """A handler that looks at everything and repeats what it saw in its error does not stand still at it."""
    app = bench.app(retry=RetryStrategy(max_attempts=1, wait=0.05, exponential_wait=0))
    app._dead_letter_topic = create_topic(bench.server, f"{bench.topic}.dead")
    observe(app, on_failure)
    write(bench, event(0, key=b"first"), record, event(9, key=b"last"))
    with running(app):
        until(lambda: {0, 9} <= set(bench.effects()))
        until(lambda: app.counters.processed == 3 or app.counters.dead_letters == 1)
    assert committed(bench) == 3


def observe(app: Consumer, on_failure: Any) -> None:
    """Handle an event as an application does that trusts nobody; all but the first and last one fail."""

    @app.handler("Placed", on_failure=on_failure)
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        whole = [event.data, event.key, event.version, event.headers, event.traceparent, event.occurred_at]
        if event.data["n"] not in (0, 9):
            raise ValueError(f"{event!r}: " + "".join(str(part) for part in whole))
        write_effect(conn, event)
