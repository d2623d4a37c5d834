"""The trace of an event's writer goes on in its handler; without OpenTelemetry nothing of it is there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from confluent_kafka import Message
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from durable_lab import Lab, finish, new_inbox
from fix_consumer import Bench, running, write_effect
from fix_stack import Database
from outbox_consumers import Event, Reject, Skip
from waiting import until

pytestmark = pytest.mark.stack

TRACE, PARENT = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Everything that is traced while the test runs; afterwards no provider is set, as before."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return exporter


def send(bench: Bench, n: int, traceparent: str | None, kind: str = "Placed") -> UUID:
    event_id = uuid4()
    context: list[tuple[str, str | bytes | None]] = []
    if traceparent is not None:
        context = [("traceparent", traceparent.encode()), ("tracestate", b"vendor=1")]
    headers = [("id", str(event_id).encode()), ("event_type", kind.encode()), *context]
    bench.send({"n": n}, kind=kind, id=event_id, headers=headers, partition=0)
    bench.flush()
    return event_id


def traceparent(parent: int = PARENT) -> str:
    return f"00-{TRACE:032x}-{parent:016x}-01"


def told(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {})[name]


def test_a_handler_s_span_is_a_child_of_its_writer_s(bench: Bench, spans: InMemorySpanExporter) -> None:
    app = bench.app()

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        with trace.get_tracer("handler").start_as_current_span("inside"):
            write_effect(conn, event)

    event_id = send(bench, 1, traceparent())
    without = send(bench, 2, None)
    broken = send(bench, 3, "no trace context")
    with running(app):
        until(lambda: app.counters.processed == 3)
    finished = spans.get_finished_spans()
    handled = {told(span, "messaging.message.id"): span for span in finished if span.name == "process Placed"}
    span = handled[str(event_id)]
    assert span.context.trace_id == TRACE
    assert span.parent is not None
    assert (span.parent.span_id, span.parent.trace_state.get("vendor")) == (PARENT, "1")
    assert span.kind is SpanKind.CONSUMER
    assert told(span, "messaging.destination.name") == bench.topic
    assert told(span, "messaging.destination.partition.id") == "0"
    assert told(span, "outbox.attempt") == 1
    inside = next(
        child for child in finished if child.parent and child.parent.span_id == span.context.span_id
    )
    assert inside.name == "inside"
    assert handled[str(without)].parent is None
    assert handled[str(broken)].parent is None


def test_a_span_has_the_outcome_of_the_handler(bench: Bench, spans: InMemorySpanExporter) -> None:
    app = bench.app()

    @app.handler("Placed", pipeline=False)
    async def placed(conn: psycopg.AsyncConnection[Any], event: Event) -> None:
        if event.data["n"] == 2:
            raise Skip
        if event.data["n"] == 3:
            raise Reject("never")

    for n in range(1, 4):
        send(bench, n, traceparent())
    with running(app):
        until(lambda: app.counters.dead_letters == 1)
    last = {told(span, "messaging.kafka.offset"): span for span in spans.get_finished_spans()}
    assert [last[offset].status.status_code for offset in range(3)] == [
        StatusCode.UNSET,
        StatusCode.UNSET,
        StatusCode.ERROR,
    ]
    assert told(last[1], "outbox.outcome") == "skipped"
    assert [event.name for event in last[2].events] == ["exception"]


def test_a_batch_links_to_every_trace_it_comes_from(bench: Bench, spans: InMemorySpanExporter) -> None:
    app = bench.app()

    @app.batch_handler("Placed")
    def placed(conn: psycopg.Connection[Any], events: Sequence[Event]) -> None:
        for event in events:
            write_effect(conn, event)

    for n in range(1, 6):
        send(bench, n, traceparent(n))
    send(bench, 6, None)
    with running(app):
        until(lambda: app.counters.processed == 6)
    links = [link.context.span_id for span in spans.get_finished_spans() for link in span.links]
    assert links == [1, 2, 3, 4, 5]
    assert sum(told(span, "messaging.batch.message_count") for span in spans.get_finished_spans()) == 6


@pytest.mark.parametrize("together", [False, True])
def test_a_job_s_span_is_a_child_of_its_writer_s(
    database: Database, tmp_path: Path, spans: InMemorySpanExporter, together: bool
) -> None:
    """Jobs that Kafka brought say where from; one that was put in without Kafka has no place there."""
    lab = Lab(database.conninfo, tmp_path)
    lab.create()
    durable = new_inbox(lab.dsn)
    headers: list[tuple[str, str | bytes | None]] = [
        ("id", str(uuid4()).encode()),
        ("event_type", b"Placed"),
        ("traceparent", traceparent().encode()),
    ]
    received = Event.of(Message("orders", 2, 7, b"k", b'{"n": 2}', headers))

    @durable.handler("Placed", together=together)
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        if event.data["n"] == 1:
            raise Reject("never")
        write_effect(conn, event)

    @durable.handler("Moved")
    async def moved(conn: psycopg.AsyncConnection[Any], event: Event) -> None:
        await conn.execute("SELECT 1")
        raise Skip

    with psycopg.connect(lab.dsn, autocommit=True) as conn:
        durable.put(conn, "Placed", {"n": 1})
        durable._received(conn, [received])
        durable.put(conn, "Moved", {"n": 3})
    finish(lab, durable)
    seen = {
        (span.name, str((span.attributes or {}).get("messaging.kafka.offset"))): span
        for span in spans.get_finished_spans()
    }
    job = seen["process Placed", "7"]
    assert job.context.trace_id == TRACE
    assert job.parent is not None
    assert job.parent.span_id == PARENT
    assert told(job, "messaging.destination.name") == "orders"
    assert told(job, "outbox.consumer") == "billing"
    assert seen["process Placed", "None"].status.status_code is StatusCode.ERROR
    assert told(seen["process Moved", "None"], "outbox.outcome") == "skipped"


def test_without_a_tracer_provider_a_handler_is_called_as_it_stands(bench: Bench) -> None:
    app = bench.applying()
    assert app._traced_routes() is app._routes


def test_nothing_of_opentelemetry_is_imported_by_a_consumer_that_does_not_use_it() -> None:
    program = (
        "import sys; from outbox_consumers import Consumer;"
        "app = Consumer('billing', kafka={'bootstrap.servers': 'h:1'}, topics=['t']);"
        "assert app._traced_routes() is app._routes;"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
