"""What an error says about an event, and where the event goes then."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from outbox_consumers.errors import (
    InboxUnusable,
    NotDelivered,
    ReadOnlyDatabase,
    Reject,
    Stopped,
    SwallowedDatabaseError,
    TooManyDeadLetters,
    TransactionEndedByHandler,
    UnknownEventType,
    UnreadablePayload,
    UntypedRecords,
)
from outbox_consumers.failures.classification import FailureKind, classify, unless_fatal
from outbox_consumers.failures.destination import Destination, destination
from outbox_consumers.failures.process_crashes import CrashedTooOften
from outbox_consumers.handlers.routes import OnFailure

TEMPORARY = [
    errors.DeadlockDetected(),
    errors.SerializationFailure(),
    errors.LockNotAvailable(),
    errors.AdminShutdown(),
    errors.IdleInTransactionSessionTimeout(),
    errors.DiskFull(),
    psycopg.OperationalError("the connection is lost"),
    ReadOnlyDatabase("a standby"),
    NotDelivered("the topic does not answer"),
]


@pytest.mark.parametrize("error", TEMPORARY, ids=lambda error: type(error).__name__)
def test_a_temporary_error_is_an_outage_without_a_connection(error: Exception) -> None:
    assert classify(error, connected=True).kind is FailureKind.TRANSIENT
    assert classify(error, connected=False).kind is FailureKind.OUTAGE


@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InboxUnusable("no table"), FailureKind.FATAL),
        (Stopped("on_failure"), FailureKind.FATAL),
        (TooManyDeadLetters("100 in a row"), FailureKind.FATAL),
        (UnknownEventType("no handler"), FailureKind.FATAL),
        (UntypedRecords("no type"), FailureKind.FATAL),
        (CrashedTooOften("3 times"), FailureKind.CRASH),
        (Reject("never"), FailureKind.REJECTED),
        (UnreadablePayload("no JSON"), FailureKind.REJECTED),
        (ValueError("a bug in the handler"), FailureKind.EVENT),
        (errors.UniqueViolation(), FailureKind.EVENT),
        (errors.UndefinedTable(), FailureKind.EVENT),
        (errors.PipelineAborted(), FailureKind.EVENT),
        (SwallowedDatabaseError("caught"), FailureKind.EVENT),
        (TransactionEndedByHandler("commit"), FailureKind.EVENT),
    ],
    ids=lambda value: value.name if isinstance(value, FailureKind) else type(value).__name__,
)
def test_other_errors_are_of_one_kind(error: Exception, kind: FailureKind, connected: bool) -> None:
    failure = classify(error, connected=connected)
    assert (failure.kind, failure.error) == (kind, error)
    if kind is FailureKind.FATAL:
        with pytest.raises(type(error)):
            unless_fatal(failure)
    else:
        assert unless_fatal(failure) is failure


NEVER_EXHAUSTED: dict[OnFailure, Destination] = {
    "block": Destination.RETRY,
    "park": Destination.PARKED,
    "dead_letter": Destination.RETRY,
    "stop": Destination.RETRY,
}
EXHAUSTED: dict[OnFailure, Destination] = {
    "block": Destination.RETRY,
    "park": Destination.PARKED,
    "dead_letter": Destination.DEAD_LETTER,
    "stop": Destination.STOP,
}


@pytest.mark.parametrize("on_failure", EXHAUSTED)
def test_where_a_failing_event_goes(on_failure: OnFailure) -> None:
    kind = FailureKind.EVENT
    assert destination(kind, on_failure, exhausted=False) is NEVER_EXHAUSTED[on_failure]
    assert destination(kind, on_failure, exhausted=True) is EXHAUSTED[on_failure]


@pytest.mark.parametrize("exhausted", [False, True])
@pytest.mark.parametrize("on_failure", EXHAUSTED)
def test_the_attempts_count_only_for_faults_of_the_event(on_failure: OnFailure, exhausted: bool) -> None:
    for kind in (FailureKind.OUTAGE, FailureKind.TRANSIENT):
        assert destination(kind, on_failure, exhausted=exhausted) is Destination.RETRY
    assert destination(FailureKind.REJECTED, on_failure, exhausted=exhausted) is Destination.DEAD_LETTER
