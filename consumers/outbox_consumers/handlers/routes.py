"""Which function handles which event type, and what happens when it fails."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

from psycopg import AsyncConnection, Connection, Cursor

from outbox_consumers.errors import Reject, UnknownEventType, UsageError
from outbox_consumers.event import Event
from outbox_consumers.handlers.connection import HandlerConnection
from outbox_consumers.handlers.retry import RetryStrategy
from outbox_consumers.handlers.upcasts import Upcast, Upcasts

Handler: TypeAlias = Callable[[Connection[Any], Event], object]
CursorHandler: TypeAlias = Callable[[Cursor[Any], Event], object]
BatchHandler: TypeAlias = Callable[[Connection[Any], Sequence[Event]], object]
AsyncHandler: TypeAlias = Callable[[AsyncConnection[Any], Event], Awaitable[object]]
AsyncBatchHandler: TypeAlias = Callable[[AsyncConnection[Any], Sequence[Event]], Awaitable[object]]
OnFailure: TypeAlias = Literal["block", "park", "dead_letter", "stop"]
Unknown: TypeAlias = Literal["skip", "dead_letter", "fail"]
Stale: TypeAlias = Literal["dead_letter", "process", "skip"]
Untyped: TypeAlias = Literal["stop", "skip", "dead_letter"]

# For handlers that give up at some time but do not say when.
DEFAULT_ATTEMPTS: Final = 5


@dataclass(slots=True)
class Route:
    """A handler and how it wants to be called. `batch_of` 0: one call per event."""

    event_type: str
    function: Callable[[Any, Any], object]
    batch_of: int
    pipeline: bool
    on_failure: OnFailure = "block"
    cursor: bool = False  # the function wants a cursor, not a connection
    version: int | None = None  # of the payload that the handler wants; None: whatever comes
    upcasts: Mapping[int, Upcast] = field(default_factory=dict)  # by the version they start from

    def call(self, conn: Connection[Any], event: Event) -> None:
        """Hand one event to the handler."""
        self.function(conn, [event] if self.batch_of else event)

    def gives_up(self, attempts: int, retry: RetryStrategy) -> bool:
        """Say whether the event has been tried often enough."""
        if self.on_failure in ("dead_letter", "stop") and retry.max_attempts is None:
            return attempts >= DEFAULT_ATTEMPTS
        return self.on_failure != "block" and retry.exhausted(attempts)


class Routes:
    """The handlers of one consumer by event type.

    `fallback` takes the types that have none, `untyped` the records without a type, `stale` the events
    from before the inbox's window; without one they are skipped. `stops_untyped` says that records
    without a type may not be skipped before there was one with a type.
    """

    def __init__(
        self, unknown: Unknown = "skip", stale: Stale = "dead_letter", untyped: Untyped = "stop"
    ) -> None:
        if unknown not in get_args(Unknown):
            raise UsageError(f"unknown={unknown!r}", remedy="say skip, dead_letter or fail")
        if stale not in get_args(Stale):
            raise UsageError(f"stale={stale!r}", remedy="say dead_letter, process or skip")
        if untyped not in get_args(Untyped):
            raise UsageError(f"untyped={untyped!r}", remedy="say stop, skip or dead_letter")
        self.by_type: dict[object, Route] = {}  # by the header's bytes
        self.upcasts = Upcasts()
        self.fallback = {"skip": None, "dead_letter": _REJECT_UNKNOWN, "fail": _FAIL_UNKNOWN}[unknown]
        as_unknown = {"skip": None, "dead_letter": _REJECT_UNTYPED, "fail": _FAIL_UNKNOWN}[unknown]
        self.untyped = {"stop": as_unknown, "skip": None, "dead_letter": _REJECT_UNTYPED}[untyped]
        self.stops_untyped = untyped == "stop" and as_unknown is None
        self.trusts_stale = stale == "process"
        self.stale = _REJECT_STALE if stale == "dead_letter" else None

    def add(self, route: Route) -> None:
        """Register a handler, asynchronous or not.

        Raises UsageError for a wrong signature or a type that has one already.
        """
        if not route.event_type:
            raise UsageError("a handler needs an event type", remedy='write @app.handler("OrderPlaced")')
        if route.on_failure not in get_args(OnFailure):
            choices = ", ".join(get_args(OnFailure))
            raise UsageError(f"on_failure={route.on_failure!r}", remedy=f"say one of {choices}")
        check_signature(route.function, "events" if route.batch_of else "event")
        if route.cursor and inspect.iscoroutinefunction(route.function):
            raise UsageError("cursor=True is for handlers that are not asynchronous", remedy="leave it out")
        if route.cursor:
            route.function = _with_cursor(route.function)
        if inspect.iscoroutinefunction(route.function):
            route.function, route.pipeline = _waiting_for(route.function), False
        key = route.event_type.encode()
        if key in self.by_type:
            raise UsageError(f"two handlers for {route.event_type}", remedy="keep one of them")
        route.upcasts = self.upcasts.of(route.event_type)
        self.by_type[key] = route

    def wrapped(self, wrap: Callable[[Route], Route]) -> Routes:
        """Give the same routes with something around each handler."""
        copy = Routes.__new__(Routes)
        copy.__dict__.update(vars(self))
        copy.by_type = {key: wrap(route) for key, route in self.by_type.items()}
        return copy

    def find(self, event_type: bytes | None) -> Route | None:
        """Find the handler of an event type as it stands in the record's header."""
        return self.by_type.get(event_type, self.fallback)


def _waiting_for(function: Callable[..., Any]) -> Callable[[Connection[Any], Any], object]:
    def call(conn: Connection[Any], argument: Any) -> object:
        assert isinstance(conn, HandlerConnection)
        return conn.wait_for(function, argument)

    return call


def _with_cursor(function: Callable[..., Any]) -> Callable[[Connection[Any], Any], object]:
    def call(conn: Connection[Any], event: Any) -> object:
        return function(conn.lasting_cursor if isinstance(conn, HandlerConnection) else conn.cursor(), event)

    return call


def _reject_unknown(conn: Connection[Any], event: Event) -> None:
    raise Reject("no handler for this event type")


def _reject_untyped(conn: Connection[Any], event: Event) -> None:
    raise Reject("the record names no event type")


def _reject_unreadable(conn: Connection[Any], event: Event) -> None:
    raise Reject("the headers of the record cannot be read: the name of one is not UTF-8")


def _fail_unknown(conn: Connection[Any], event: Event) -> None:
    raise UnknownEventType(f"no handler for {event!r}", remedy="add one, or skip unknown types")


def _reject_stale(conn: Connection[Any], event: Event) -> None:
    raise Reject("older than the inbox remembers: nobody knows whether it was handled")


_REJECT_UNKNOWN: Final = Route("", _reject_unknown, 0, False)
_REJECT_UNTYPED: Final = Route("", _reject_untyped, 0, False)
_FAIL_UNKNOWN: Final = Route("", _fail_unknown, 0, False)
_REJECT_STALE: Final = Route("", _reject_stale, 0, False)
REJECT_UNREADABLE: Final = Route("", _reject_unreadable, 0, False)


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
