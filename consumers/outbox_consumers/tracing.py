"""A span around each handler, whose parent is the trace that wrote the event. Needs the extra `otel`.

The consumer imports this module only when its application has imported OpenTelemetry: without it a handler is
called exactly as it stands. Names follow OpenTelemetry's semantic conventions for messaging.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from outbox_consumers.errors import Skip
from outbox_consumers.event import TYPE_HEADER, Event, header, headers_of
from outbox_consumers.routes import Route

Wrap: TypeAlias = Callable[[Route], Route]
Handler: TypeAlias = Callable[..., Any]

_CONTEXT_HEADERS = {"traceparent": 4, "tracestate": 5}
_PLACE = ("messaging.destination.", "messaging.kafka.")
_propagator = TraceContextTextMapPropagator()


def around(consumer: str, group: str) -> Wrap | None:
    """Give what puts a span around a route's handler; None where no tracer provider is set to see it."""
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return functools.partial(_traced, trace.get_tracer("outbox_consumers"), consumer, group)


def around_jobs(consumer: str) -> Callable[[str, Handler], Handler] | None:
    """Give what puts a span around the handler of a type of job; None where no tracer provider is set."""
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return functools.partial(_traced_job, trace.get_tracer("outbox_consumers"), consumer)


def _traced_job(tracer: Tracer, consumer: str, event_type: str, function: Handler) -> Handler:
    """Give a handler that runs in a span of its own; an asynchronous one stays asynchronous."""

    def span(event: Event) -> AbstractContextManager[None]:
        operation = {"messaging.operation.name": "process", "messaging.operation.type": "process"}
        attributes = operation | {"outbox.consumer": consumer} | _about_job(event)
        return _span(tracer, f"process {event_type}", attributes, parent=_context(event))

    def job(conn: Any, event: Event) -> object:
        with span(event):
            return function(conn, event)

    async def job_async(conn: Any, event: Event) -> object:
        with span(event):
            return await function(conn, event)

    return job_async if inspect.iscoroutinefunction(function) else job


def _traced(tracer: Tracer, consumer: str, group: str, route: Route) -> Route:
    """Give a route whose handler runs in a span of its own."""
    function, name = route.function, f"process {route.event_type}"
    attributes = {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": group,
        "outbox.consumer": consumer,
    }

    def one(conn: Any, event: Event) -> object:
        with _span(tracer, name, attributes | _about(event), parent=_context(event)):
            return function(conn, event)

    def many(conn: Any, events: Sequence[Event]) -> object:
        # A span has one parent and a batch comes from many traces, so it links to them.
        count = {"messaging.batch.message_count": len(events)}
        with _span(tracer, name, attributes | count, links=events):
            return function(conn, events)

    return replace(route, function=many if route.batch_of else one)


@contextmanager
def _span(
    tracer: Tracer,
    name: str,
    attributes: dict[str, Any],
    *,
    parent: Context | None = None,
    links: Sequence[Event] = (),
) -> Iterator[None]:
    contexts = [trace.get_current_span(_context(event)).get_span_context() for event in links]
    with tracer.start_as_current_span(
        name,
        context=Context() if parent is None else parent,
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=[Link(context) for context in contexts if context.is_valid],
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except Skip:
            span.set_attribute("outbox.outcome", "skipped")
            raise
        except Exception as error:
            span.record_exception(error)
            span.set_status(StatusCode.ERROR, type(error).__name__)
            raise


def _context(event: Event) -> Context:
    """Read the trace that the event's writer was in; an empty context when it was in none."""
    found = headers_of(event.message)
    values = {name: header(found, name, place) for name, place in _CONTEXT_HEADERS.items()}
    carrier = {name: value.decode(errors="replace") for name, value in values.items() if value}
    return _propagator.extract(carrier, Context())


def _about(event: Event) -> dict[str, Any]:
    topic, partition, offset = event.position
    kind = header(headers_of(event.message), TYPE_HEADER, 1) or b""
    return {
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": str(partition),
        "messaging.kafka.offset": offset,
        "messaging.message.id": str(event.id),
        "outbox.event_type": kind.decode(errors="backslashreplace"),
        "outbox.attempt": event.attempt,
    }


def _about_job(event: Event) -> dict[str, Any]:
    """Describe a job; one that was put in without Kafka has no place there."""
    about = _about(event)
    if event.message.topic():
        return about | {"messaging.system": "kafka"}
    return {name: value for name, value in about.items() if not name.startswith(_PLACE)}
