"""Which function handles which event type."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from psycopg import Connection

from outbox_consumers.errors import UsageError
from outbox_consumers.event import Event

Handler: TypeAlias = Callable[[Connection[Any], Event], object]
BatchHandler: TypeAlias = Callable[[Connection[Any], Sequence[Event]], object]


@dataclass(slots=True)
class Route:
    """A handler and how it wants to be called. `batch_of` 0: one call per event."""

    event_type: str
    function: Callable[[Connection[Any], Any], object]
    batch_of: int
    pipeline: bool


class Routes:
    """The handlers of one consumer by event type."""

    def __init__(self) -> None:
        self.by_type: dict[object, Route] = {}  # by the header's bytes

    def add(self, route: Route) -> None:
        """Register a handler. Raises UsageError for a wrong signature or a type that has one already."""
        if not route.event_type:
            raise UsageError("a handler needs an event type", remedy='write @app.handler("OrderPlaced")')
        check_signature(route.function, "events" if route.batch_of else "event")
        if route.batch_of < 0:
            raise UsageError(f"max_size={route.batch_of}: a batch holds at least one event")
        key = route.event_type.encode()
        if key in self.by_type:
            raise UsageError(f"two handlers for {route.event_type}", remedy="keep one of them")
        self.by_type[key] = route


def check_signature(function: Callable[..., object], second: str) -> None:
    """Raise UsageError unless the function can be called with (conn, event)."""
    name = getattr(function, "__name__", repr(function))
    if not callable(function):
        raise UsageError(f"{name} is not a function")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise UsageError(
            f"handler {name} cannot be called with two arguments: {error}",
            remedy=f"write def {name}(conn, {second}): ...",
        ) from None
