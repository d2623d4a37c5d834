"""A span around each handler call, whose parent is the span that wrote the event. Needs the extra `otel`.

The consumer imports this module only when its application has imported OpenTelemetry; without it handlers
are called directly. Names follow OpenTelemetry's semantic conventions for messaging.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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


def around(consumer: str, group: str | None = None) -> Wrap | None:
    """Return a function that adds a span to a route's handler; None when no tracer provider is set.

    `group` is the consumer group; None for the workers of a durable inbox.
    """
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    attributes: Attributes = {"outbox.consumer": consumer}
    if group is not None:
        attributes["messaging.consumer.group.name"] = group
    return functools.partial(_traced, trace.get_tracer("outbox_consumers"), attributes)


def _traced(tracer: Tracer, attributes: Attributes, route: Route) -> Route:
    """Return the route with a span around each call of its handler."""
    wrap = _around_batch if route.batch_of else _around_event
    return replace(route, function=wrap(tracer, route.event_type, attributes, route.function))


def _around_event(tracer: Tracer, event_type: str, attributes: Attributes, function: Handler) -> Handler:
    """Return a handler that runs in a span, a child of the span in which its event was written."""

    def handle(conn: Any, event: Event) -> object:
        with _span(tracer, event_type, attributes | _about(event), parent=_context(event)):
            return function(conn, event)

    return handle


def _around_batch(tracer: Tracer, event_type: str, attributes: Attributes, function: Handler) -> Handler:
    """Return a batch handler that runs in a span with links to the traces of all its events."""

    def handle(conn: Any, events: Sequence[Event]) -> object:
        about = {**_KAFKA, "messaging.batch.message_count": len(events)}
        with _span(tracer, event_type, attributes | about, links=events):
            return function(conn, events)

    return handle


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
    """Read the trace context that the event's writer stored in its headers; empty without one."""
    found = event.record_headers
    values = {name: header_value(found, name, place) for name, place in _CONTEXT_HEADERS.items()}
    carrier = {name: value.decode(errors="replace") for name, value in values.items() if value}
    return _propagator.extract(carrier, Context())


def _about(event: Event) -> Attributes:
    """Return the span attributes of an event. A job that did not come from Kafka has no topic."""
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
