"""Routes: which function handles which event type, how it is called, and the upcasts of its payloads."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

from psycopg import AsyncConnection, Connection, Cursor

from outbox_consumers.errors import Reject, UnknownEventType, UsageError
from outbox_consumers.event import Event
from outbox_consumers.handlers.connection import HandlerConnection
from outbox_consumers.handlers.retry import RetryStrategy

Handler: TypeAlias = Callable[[Connection[Any], Event], object]
CursorHandler: TypeAlias = Callable[[Cursor[Any], Event], object]
BatchHandler: TypeAlias = Callable[[Connection[Any], Sequence[Event]], object]
AsyncHandler: TypeAlias = Callable[[AsyncConnection[Any], Event], Awaitable[object]]
AsyncBatchHandler: TypeAlias = Callable[[AsyncConnection[Any], Sequence[Event]], Awaitable[object]]
Upcast: TypeAlias = Callable[[Any], Any]
OnFailure: TypeAlias = Literal["block", "park", "dead_letter", "stop"]
Unknown: TypeAlias = Literal["skip", "dead_letter", "fail"]
Stale: TypeAlias = Literal["dead_letter", "process", "skip"]
Untyped: TypeAlias = Literal["stop", "skip", "dead_letter"]

# For handlers whose attempts are limited, where no number is given.
DEFAULT_ATTEMPTS: Final = 5
DEFAULT_JOB_ATTEMPTS: Final = 10

_NOT_CALLED: Final = float("inf")


@dataclass(slots=True)
class Route:
    """The handler of an event type, and how it is called, by a Consumer or by a worker of a DurableInbox."""

    event_type: str
    function: Callable[[Any, Any], object]
    # Used by a Consumer.
    batch_of: int = 0  # maximum number of events per call; 0: the function takes one event, not a list
    pipeline: bool = False
    on_failure: OnFailure = "block"
    cursor: bool = False  # the function takes a cursor, not a connection
    # Used by both.
    version: int | None = None  # of the payload that the function takes; None: any
    upcasts: Mapping[int, Upcast] = field(default_factory=dict)  # by the version they start from
    # Used by a worker of a DurableInbox.
    max_attempts: int = DEFAULT_JOB_ATTEMPTS
    timeout: float | None = None  # seconds for one call
    together: bool = False  # quick calls may share a transaction
    seconds: float = _NOT_CALLED  # estimated duration of a call

    def call(self, conn: Connection[Any], event: Event) -> None:
        """Call the handler with one event."""
        self.function(conn, [event] if self.batch_of else event)

    def note_duration(self, seconds: float) -> None:
        """Update the estimated duration: a longer call counts at once, a shorter one lowers it by 10 %."""
        self.seconds = seconds if self.seconds == _NOT_CALLED else max(seconds, 0.9 * self.seconds)

    def gives_up(self, attempts: int, retry: RetryStrategy) -> bool:
        """Return whether a Consumer makes no further attempt after `attempts` failed ones."""
        if self.on_failure in ("dead_letter", "stop") and retry.max_attempts is None:
            return attempts >= DEFAULT_ATTEMPTS
        return self.on_failure != "block" and retry.exhausted(attempts)


class Upcasts:
    """The upcasts of one application by event type: each turns a payload into one of the next version."""

    def __init__(self) -> None:
        self._by_type: dict[str, dict[int, Upcast]] = {}

    def add(self, event_type: str, from_version: int, function: Upcast) -> None:
        """Register an upcast. Raises UsageError for a second one from the same version."""
        registered = self._by_type.setdefault(event_type, {})
        if from_version in registered:
            raise UsageError(f"two upcasts of {event_type} from version {from_version}")
        registered[from_version] = function

    def of(self, event_type: str) -> Mapping[int, Upcast]:
        """Return a live view on the upcasts of an event type: it shows those added later, too."""
        return self._by_type.setdefault(event_type, {})


class Routes:
    """The handlers of one Consumer or DurableInbox by event type, and the upcasts of their payloads.

    `fallback` handles the event types without a handler, `untyped` the records without a type, `stale` the
    events from before the inbox's window; where one is None, such events are skipped. `stops_untyped`: a
    record without a type stops the consumer until a record with a type has been read.
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
        """Register a handler, a function or a coroutine function.

        Raises UsageError for a wrong signature or option, and for a second handler of an event type.
        """
        if not route.event_type:
            raise UsageError("a handler needs an event type", remedy='write handler("OrderPlaced")')
        if route.on_failure not in get_args(OnFailure):
            choices = ", ".join(get_args(OnFailure))
            raise UsageError(f"on_failure={route.on_failure!r}", remedy=f"say one of {choices}")
        if route.max_attempts < 1:
            raise UsageError(f"max_attempts={route.max_attempts}: must be at least 1")
        if route.timeout is not None and route.timeout <= 0:
            raise UsageError(f"timeout={route.timeout}: must be more than 0 seconds")
        _check_signature(route.function, "events" if route.batch_of else "event")
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
        """Return a copy in which every handler's route is replaced by `wrap(route)`."""
        copied = copy(self)
        copied.by_type = {key: wrap(route) for key, route in self.by_type.items()}
        return copied

    def find(self, event_type: bytes | None) -> Route | None:
        """Return the handler of an event type, given as the bytes of its header."""
        return self.by_type.get(event_type, self.fallback)


def _waiting_for(function: Callable[..., Any]) -> Callable[[Connection[Any], Any], object]:
    def call(conn: Connection[Any], argument: Any) -> object:
        assert isinstance(conn, HandlerConnection)
        return conn.wait_for(function, argument)

    return call


def _with_cursor(function: Callable[..., Any]) -> Callable[[Connection[Any], Any], object]:
    def call(conn: Connection[Any], event: Any) -> object:
        return function(conn.reused_cursor if isinstance(conn, HandlerConnection) else conn.cursor(), event)

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
    raise Reject("older than what the inbox remembers: it may have been handled before")


_REJECT_UNKNOWN: Final = Route("", _reject_unknown)
_REJECT_UNTYPED: Final = Route("", _reject_untyped)
_FAIL_UNKNOWN: Final = Route("", _fail_unknown)
_REJECT_STALE: Final = Route("", _reject_stale)
REJECT_UNREADABLE: Final = Route("", _reject_unreadable)


def _check_signature(function: Callable[..., object], second: str) -> None:
    """Raise UsageError unless the function can be called with two arguments, `conn` and `second`."""
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
