"""Classify an error once, where it is caught: a fault of the event, of the database, or a reason to stop."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from outbox_consumers.errors import InboxUnusable, Reject, Stopped
from outbox_consumers.failures.process_crashes import CrashedTooOften
from outbox_consumers.handlers.retry import is_transient


class FailureKind(Enum):
    """What an error says about an event."""

    FATAL = auto()  # the consumer has to stop: no usable inbox, or a handler or a limit asks for it
    OUTAGE = auto()  # there is no database connection, so no event can succeed
    TRANSIENT = auto()  # passes by itself: deadlock, time-out, failed delivery to a topic
    CRASH = auto()  # a process of this consumer crashed, and this event may be the cause
    REJECTED = auto()  # a handler raised Reject: the event will never succeed
    EVENT = auto()  # anything else: this event fails and may succeed at another attempt


@dataclass(frozen=True, slots=True)
class Failure:
    """An error and its kind."""

    kind: FailureKind
    error: Exception


def classify(error: Exception, *, connected: bool) -> Failure:
    """Classify an error that was raised while events were handled.

    `connected` says whether the database connection is usable after the rollback.
    """
    return Failure(_kind(error, connected), error)


def unless_fatal(failure: Failure) -> Failure:
    """Return a failure with which the consumer can continue; raise the error of any other."""
    if failure.kind is FailureKind.FATAL:
        raise failure.error
    return failure


def _kind(error: Exception, connected: bool) -> FailureKind:
    if isinstance(error, InboxUnusable | Stopped):
        return FailureKind.FATAL
    if is_transient(error):
        return FailureKind.TRANSIENT if connected else FailureKind.OUTAGE
    if isinstance(error, CrashedTooOften):
        return FailureKind.CRASH
    return FailureKind.REJECTED if isinstance(error, Reject) else FailureKind.EVENT
