"""Records without an event type: a consumer that has met no other stops, one that has goes on and says so."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import TopicPartition
from uuid_utils.compat import uuid7

from fix_consumer import Bench, RecordHeaders, create_topic, running, write_effect
from outbox_connectors.errors import ExitCode
from outbox_consumers import Consumer, DurableInbox, Event
from outbox_consumers.durable import steps
from outbox_consumers.errors import UnknownEventType, UntypedRecords, UsageError
from outbox_consumers.handlers.routes import Untyped
from outbox_consumers.inbox.schema import apply
from waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack

APP = """
import os
from outbox_consumers import Consumer

app = Consumer(
    "billing",
    kafka={"bootstrap.servers": os.environ["BENCH_KAFKA"], "group.id": os.environ["BENCH_TOPIC"]},
    topics=[os.environ["BENCH_TOPIC"]],
    dsn=os.environ["BENCH_DSN"],
)


@app.handler("Placed")
def placed(conn, event):
    pass
"""


def send(bench: Bench, name: str, count: int = 50, *, first: int = 0, topic: str = "") -> None:
    """Send events whose type stands in the header `name`, or in none for an empty name."""
    for n in range(first, first + count):
        headers: RecordHeaders = [("id", str(uuid7()).encode())]
        if name:
            headers.append((name, b"Placed"))
        value = b'{"type": "Placed", "n": %d}' % n
        bench.producer.produce(topic or bench.topic, value, b"k", partition=0, headers=headers)
    bench.flush()


def offset(bench: Bench) -> int:
    client = KafkaConsumer({"bootstrap.servers": bench.server.kafka, "group.id": f"{bench.topic}.billing"})
    (place,) = client.committed([TopicPartition(bench.topic, 0)], timeout=PATIENCE_SECONDS)
    client.close()
    return max(0, int(place.offset))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "has no event type" in record.message]


@pytest.mark.parametrize(
    ("name", "told", "remedy"),
    [
        ("eventType", "its headers are id, eventType;", "type_header='eventType'"),
        ("ce_type", "its headers are id, ce_type;", "type_header='ce_type'"),
        ("", "its headers are id;", "type_header=..."),
    ],
)
def test_a_consumer_that_has_seen_no_type_stops_and_keeps_the_offset(
    bench: Bench, caplog: pytest.LogCaptureFixture, name: str, told: str, remedy: str
) -> None:
    send(bench, name)
    for _ in range(2):  # a restart does not skip them either
        with pytest.raises(UntypedRecords) as caught, caplog.at_level(logging.WARNING):
            bench.applying().run()
        text = str(caught.value)
        assert f"record {bench.topic}/0/0 has no header event_type" in text
        assert "\n" not in text
        assert (told in text, remedy in text) == (True, True), text
    assert (bench.effects(), offset(bench)) == ([], 0)
    assert warnings(caplog)[0].startswith(f"record {bench.topic}/0/0 has no event type (header event_type)")


def test_an_event_without_a_payload_stops_it_as_well(bench: Bench) -> None:
    """A tombstone with headers tells something: the type of an event that has no payload."""
    for value in (None, b""):
        bench.send(value, headers=[("id", str(uuid7()).encode()), ("eventType", b"Placed")], partition=0)
        bench.flush()
    with pytest.raises(UntypedRecords, match="type_header='eventType'"):
        bench.applying().run()
    assert offset(bench) == 0


def test_the_command_says_it_in_one_line(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "untyped_app.py").write_text(APP)
    send(bench, "ce_type")
    done = subprocess.run(
        [Path(sys.executable).with_name("outboxctl"), "consume", "untyped_app:app"],
        cwd=tmp_path, env=os.environ | bench.environ, capture_output=True, text=True, check=False,
        timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert done.returncode == ExitCode.FAILED, done.stderr
    assert "Traceback" not in done.stderr
    assert "type_header='ce_type'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["ce_type", "eventType"])
def test_the_printed_remedy_works(bench: Bench, name: str) -> None:
    send(bench, name)
    with running(bench.applying(type_header=name)) as app:
        until(lambda: app.counters.processed == 50)
    assert bench.effects() == list(range(50))


def test_id_and_type_are_found_under_the_names_that_are_given(bench: Bench) -> None:
    event_id = uuid7()
    headers: RecordHeaders = [
        ("event_type", b"no"),
        ("ce_type", b"Placed"),
        ("ce_id", str(event_id).encode()),
    ]
    for _ in range(2):
        bench.send({"n": 1}, id=event_id, headers=headers, partition=0)
    bench.flush()
    with running(bench.applying(type_header="ce_type", id_header="ce_id")) as app:
        until(lambda: app.counters.processed + app.counters.duplicates == 2)
    bench.applied_once()


def test_a_durable_inbox_reads_the_names_that_are_given(bench: Bench) -> None:
    with psycopg.connect(bench.dsn, autocommit=True) as conn:
        apply(conn, steps())
    durable = durable_inbox(bench, type_header="ce_type")
    send(bench, "ce_type", 3)
    assert durable._receiver is not None
    with running(durable._receiver) as receiver:
        until(lambda: receiver.counters.processed == 3)
    with psycopg.connect(bench.dsn, autocommit=True) as conn:
        durable.put(conn, "Placed", {"n": 3})  # a job of our own has its type in the usual place
        worker = durable._new_worker("one", kill=False)
        worker.run(lambda: durable.counters.done == 4)
    assert sorted(bench.effects()) == [0, 1, 2, 3]


def test_a_durable_inbox_that_has_met_no_type_stops(bench: Bench) -> None:
    with psycopg.connect(bench.dsn, autocommit=True) as conn:
        apply(conn, steps())
    send(bench, "ce_type", 3)
    with pytest.raises(UntypedRecords):
        durable_inbox(bench).receive()
    assert offset(bench) == 0


def durable_inbox(bench: Bench, **settings: Any) -> DurableInbox:
    kafka = {"bootstrap.servers": bench.server.kafka, "group.id": f"{bench.topic}.billing"}
    durable = DurableInbox("billing", kafka=kafka, topics=[bench.topic], dsn=bench.dsn, **settings)

    @durable.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        write_effect(conn, event)

    return durable


def test_an_untyped_record_among_events_is_skipped_counted_and_logged_once_per_topic(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    other = create_topic(bench.server, f"{bench.topic}.other")
    send(bench, "event_type", 1)
    app = bench.applying(topics=[bench.topic, other])
    with caplog.at_level(logging.WARNING), running(app):
        until(lambda: app.counters.processed == 1)
        send(bench, "", 3, first=10)
        send(bench, "ce_type", 2, first=20, topic=other)
        send(bench, "event_type", 1, first=30)
        bench.send({"n": 9}, kind="Unheard", partition=0)
        bench.flush()
        until(lambda: app.counters.processed == 2 and app.counters.untyped == 5 and app.counters.skipped == 1)
    assert len(warnings(caplog)) == 2
    assert offset(bench) == 6
    assert "untyped 5" in str(app.counters)


def test_an_untyped_record_in_front_of_waiting_events_stops_no_consumer(bench: Bench) -> None:
    """What counts is whether any record that was fetched has a type."""
    send(bench, "", 1)
    send(bench, "event_type", 5, first=1)
    with running(bench.applying()) as app:
        until(lambda: app.counters.processed == 5)
    assert app.counters.untyped == 1


def test_tombstones_and_messages_of_the_connector_stop_no_consumer(bench: Bench) -> None:
    """A tombstone of a compacted topic, Debezium's heartbeat and its logical messages need no type."""
    names = [f"{bench.topic}.message", f"__debezium-heartbeat.{bench.topic}"]
    for name in names:
        create_topic(bench.server, name)
    bench.producer.produce(bench.topic, None, b"k", partition=0)
    bench.producer.produce(names[0], b'{"op":"m"}', b"k")
    bench.producer.produce(names[1], b'{"ts_ms":1}', b"k")
    bench.flush()
    app = bench.applying(topics=[bench.topic, *names])
    with running(app):
        until(lambda: app.counters.untyped == 3)
        send(bench, "event_type", 1)
        until(lambda: app.counters.processed == 1)


@pytest.mark.parametrize("untyped", ["skip", "dead_letter"])
def test_records_that_are_no_events_can_be_skipped_or_kept(bench: Bench, untyped: Untyped) -> None:
    send(bench, "", 3)
    with running(bench.applying(untyped=untyped)) as app:
        until(lambda: app.counters.untyped == 3 or app.counters.dead_letters == 3)
    kept = bench.query("SELECT error FROM inbox_dead_letter")
    assert kept == ([] if untyped == "skip" else [("Reject: the record names no event type",)] * 3)


def test_records_without_a_type_follow_what_is_said_of_unknown_ones(bench: Bench) -> None:
    send(bench, "", 2)
    with pytest.raises(UnknownEventType):
        bench.applying(unknown="fail").run()
    with running(bench.applying(unknown="dead_letter")) as app:
        until(lambda: app.counters.dead_letters == 2)


def test_names_of_headers_cannot_forge_a_line(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    headers: RecordHeaders = [("a\n\x1b[31mERROR forged", b"x"), *((f"h{n}", b"") for n in range(2000))]
    bench.send({"n": 1}, headers=headers)
    bench.flush()
    with pytest.raises(UntypedRecords) as caught, caplog.at_level(logging.WARNING):
        bench.applying().run()
    for text in (str(caught.value), *warnings(caplog)):
        assert "\n" not in text
        assert "\x1b" not in text
        assert "and 1981 more" in text


def test_unknown_values_of_untyped_are_refused() -> None:
    kafka = {"bootstrap.servers": "x"}
    settings: list[dict[str, Any]] = [
        {"untyped": "ignore"}, {"type_header": ""}, {"id_scope": ""}, {"unscoped_ids": "orders"},
    ]  # fmt: skip
    for wrong in settings:
        with pytest.raises(UsageError):
            Consumer("billing", kafka=kafka, topics=["orders"], **wrong)
