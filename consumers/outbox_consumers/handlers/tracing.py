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

from outbox_connectors.record_headers import header_value
from outbox_consumers.errors import Skip
from outbox_consumers.event import Event
from outbox_consumers.handlers.routes import Route

Wrap: TypeAlias = Callable[[Route], Route]
Handler: TypeAlias = Callable[..., Any]
Attributes: TypeAlias = dict[str, Any]

_CONTEXT_HEADERS = {"traceparent": 4, "tracestate": 5}
_KAFKA = {"messaging.system": "kafka"}
_OPERATION = {"messaging.operation.name": "process", "messaging.operation.type": "process"}
_propagator = TraceContextTextMapPropagator()


def around(consumer: str, group: str) -> Wrap | None:
    """Give what puts a span around a route's handler; None where no tracer provider is set to see it."""
    tracer = _tracer()
    return None if tracer is None else functools.partial(_traced, tracer, consumer, group)


def around_jobs(consumer: str) -> Callable[[str, Handler], Handler] | None:
    """Give what puts a span around the handler of a type of job; None where no tracer provider is set."""
    tracer = _tracer()
    if tracer is None:
        return None
    return lambda event_type, function: _around_one(
        tracer, event_type, {"outbox.consumer": consumer}, function
    )


def _tracer() -> Tracer | None:
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return trace.get_tracer("outbox_consumers")


def _traced(tracer: Tracer, consumer: str, group: str, route: Route) -> Route:
    """Give a route whose handler runs in a span of its own."""
    attributes = {"messaging.consumer.group.name": group, "outbox.consumer": consumer}
    put = _around_many if route.batch_of else _around_one
    return replace(route, function=put(tracer, route.event_type, attributes, route.function))


def _around_one(tracer: Tracer, event_type: str, attributes: Attributes, function: Handler) -> Handler:
    """Give a handler that runs in a span, a child of its event's; an asynchronous one stays asynchronous."""

    def span(event: Event) -> AbstractContextManager[None]:
        return _span(tracer, event_type, attributes | _about(event), parent=_context(event))

    def one(conn: Any, event: Event) -> object:
        with span(event):
            return function(conn, event)

    async def one_async(conn: Any, event: Event) -> object:
        with span(event):
            return await function(conn, event)

    return one_async if inspect.iscoroutinefunction(function) else one


def _around_many(tracer: Tracer, event_type: str, attributes: Attributes, function: Handler) -> Handler:
    """Give a batch handler that runs in a span with links to the traces of all its events."""

    def many(conn: Any, events: Sequence[Event]) -> object:
        about = {**_KAFKA, "messaging.batch.message_count": len(events)}
        with _span(tracer, event_type, attributes | about, links=events):
            return function(conn, events)

    return many


@contextmanager
def _span(
    tracer: Tracer,
    event_type: str,
    attributes: Attributes,
    *,
    parent: Context | None = None,
    links: Sequence[Event] = (),
) -> Iterator[None]:
    contexts = [trace.get_current_span(_context(event)).get_span_context() for event in links]
    with tracer.start_as_current_span(
        f"process {event_type}",
        context=Context() if parent is None else parent,
        kind=SpanKind.CONSUMER,
        attributes=_OPERATION | attributes,
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
    found = event.record_headers
    values = {name: header_value(found, name, place) for name, place in _CONTEXT_HEADERS.items()}
    carrier = {name: value.decode(errors="replace") for name, value in values.items() if value}
    return _propagator.extract(carrier, Context())


def _about(event: Event) -> Attributes:
    """Describe an event. A job that was put in without Kafka has no place there."""
    topic, partition, offset = event.position
    kind = event.raw_type or b""
    about = {
        "messaging.message.id": str(event.id),
        "outbox.event_type": kind.decode(errors="backslashreplace"),
        "outbox.attempt": event.attempt,
    }
    if not topic:
        return about
    place = {
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": str(partition),
        "messaging.kafka.offset": offset,
    }
    return about | _KAFKA | place
