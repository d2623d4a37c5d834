"""Which function handles which type of job, how often, and for how long."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from outbox_consumers.durable.session import LazyConnection
from outbox_consumers.errors import UsageError
from outbox_consumers.event import Event
from outbox_consumers.handlers.routes import check_signature
from outbox_consumers.handlers.upcasts import Upcast, Upcasts

Handler: TypeAlias = Callable[..., Any]  # (conn, event), asynchronous or not

DEFAULT_ATTEMPTS: Final = 10


@dataclass(slots=True)
class JobRoute:
    """A handler. `seconds` is how long its calls take; one not yet called may take long."""

    function: Handler
    max_attempts: int
    timeout: float | None
    together: bool = False
    version: int | None = None  # of the payload that the handler wants; None: whatever comes
    upcasts: Mapping[int, Upcast] = field(default_factory=dict)  # by the version they start from
    seconds: float = float("inf")

    def took(self, seconds: float) -> None:
        """Note how long a call took. A long one is remembered for a while, a short one believed slowly."""
        self.seconds = seconds if self.seconds == float("inf") else max(seconds, 0.9 * self.seconds)

    def call(self, conn: LazyConnection, event: Event) -> None:
        """Hand a job's event to the handler, and an AsyncConnection to one that is asynchronous."""
        event._route = self
        if inspect.iscoroutinefunction(self.function):
            conn.begin()  # the asynchronous view on the connection would commit a block of its own
            conn.wait_for(self.function, event)
        else:
            self.function(conn, event)


class JobRoutes:
    """The handlers of a durable inbox by type of job, as it stands in the header."""

    def __init__(self) -> None:
        self.by_type: dict[bytes, JobRoute] = {}
        self.upcasts = Upcasts()

    def add(self, event_type: str, route: JobRoute) -> None:
        """Register a handler. Raises UsageError for what cannot be right."""
        if not event_type:
            raise UsageError("a handler needs an event type", remedy='write @durable.handler("OrderPlaced")')
        if route.max_attempts < 1:
            raise UsageError(f"max_attempts={route.max_attempts}: at least one attempt is made")
        if route.timeout is not None and route.timeout <= 0:
            raise UsageError(f"timeout={route.timeout}: a handler needs some time")
        check_signature(route.function, "event")
        key = event_type.encode()
        if key in self.by_type:
            raise UsageError(f"two handlers for {event_type}", remedy="keep one of them")
        self.by_type[key] = route

    def wrapped(self, wrap: Callable[[str, Handler], Handler]) -> JobRoutes:
        """Give the same routes with something around each handler."""
        copy = JobRoutes()
        copy.upcasts = self.upcasts
        for key, route in self.by_type.items():
            copy.by_type[key] = replace(route, function=wrap(key.decode(), route.function))
        return copy

    def find(self, event_type: bytes | None) -> JobRoute | None:
        """Find the handler of a type."""
        return None if event_type is None else self.by_type.get(event_type)
