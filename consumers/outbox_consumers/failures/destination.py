"""Decide where an event goes after a failed attempt. Pure: the loop carries the decision out."""

from __future__ import annotations

from enum import Enum, auto

from outbox_consumers.failures.classification import FailureKind
from outbox_consumers.handlers.routes import OnFailure


class Destination(Enum):
    """Where an event goes after a failed attempt."""

    RETRY = auto()  # stays at the head of its partition or parked queue until the delay is over
    PARKED = auto()  # moves from its partition to the queue of its aggregate
    DEAD_LETTER = auto()  # becomes a dead letter, with a copy on the dead letter topic if one is set
    STOP = auto()  # ends the consumer, which starts with this event next time


def destination(kind: FailureKind, on_failure: OnFailure, *, exhausted: bool) -> Destination:
    """Decide by the kind of the failure, the handler's `on_failure`, and whether its attempts are used up.

    Failures that are not the event's fault (FailureKind.OUTAGE, TRANSIENT) never use up its attempts.
    """
    if kind in (FailureKind.OUTAGE, FailureKind.TRANSIENT):
        return Destination.RETRY
    if kind is FailureKind.REJECTED:
        return Destination.DEAD_LETTER
    if on_failure == "park":
        return Destination.PARKED
    if on_failure == "block" or not exhausted:
        return Destination.RETRY
    return Destination.STOP if on_failure == "stop" else Destination.DEAD_LETTER
