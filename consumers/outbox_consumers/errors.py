"""The errors of the consumers, and the two exceptions with which a handler ends an event.

OutboxError                            exit code
├── UsageError                         2  a handler or a setting that cannot be right
│   └── RefusedSetting                 2  a Kafka property that would lose or skip events
├── Unreachable                        6  PostgreSQL or Kafka does not answer, or denies access
├── Refused
│   ├── ReadOnlyDatabase               7  a standby, or a session that may not write
│   ├── RefusedWindow                  7  an inbox that would forget ids before the topics do
│   └── SharedSession                  7  a pooler that assigns the session to others between transactions
└── Failed                             1
    ├── BatchNotCommitted              1  an own loop did not commit the same batch several times
    ├── FencedConsumer                 1  Kafka removed this member permanently
    ├── InboxUnusable                  1  no inbox table, or one with another definition
    ├── NotDelivered                   1  the dead letter topic does not take a copy; retried
    ├── Stopped                        1  an event failed whose handler says on_failure="stop"
    │   ├── TooManyDeadLetters         1  too many events became dead letters
    │   ├── UndeclaredIds              1  the inbox has an id that is no UUID without its source
    │   ├── UnknownEventType           1  no handler, and unknown="fail"
    │   └── UntypedRecords             1  no record so far has an event type
    └── UnprovenTransaction            1  it is unknown whether the effects are committed
        ├── SwallowedDatabaseError     1  a handler caught a database error and continued
        └── TransactionEndedByHandler  1  a handler committed or rolled back

Exception
├── Reject                             raised by a handler: this event can never succeed
│   └── UnreadablePayload              raised by Event for a payload that cannot be read
└── Skip                               raised by a handler: done, the event counts as handled
"""

from __future__ import annotations

from outbox_connectors.errors import Failed, Refused, Unreachable, UsageError

__all__ = [
    "BatchNotCommitted",
    "Failed",
    "FencedConsumer",
    "InboxUnusable",
    "NotDelivered",
    "ReadOnlyDatabase",
    "RefusedSetting",
    "RefusedWindow",
    "Reject",
    "SharedSession",
    "Skip",
    "Stopped",
    "SwallowedDatabaseError",
    "TooManyDeadLetters",
    "TransactionEndedByHandler",
    "UndeclaredIds",
    "UnknownEventType",
    "UnprovenTransaction",
    "Unreachable",
    "UnreadablePayload",
    "UntypedRecords",
    "UsageError",
]


class RefusedSetting(UsageError):
    """A Kafka property that would lose, skip or repeat events."""


class SharedSession(Refused):
    """The dsn leads to a pooler that lends a server session for one transaction, and nobody said so."""


class ReadOnlyDatabase(Refused):
    """The database cannot take effects: it is a standby or the session is read only."""


class RefusedWindow(Refused):
    """An inbox that would forget events which its topics can still deliver."""


class InboxUnusable(Failed):
    """The inbox table is missing or has another definition, or this role lacks rights on it."""


class BatchNotCommitted(Failed):
    """A loop over `Consumer.batches` neither committed nor skipped its batch."""


class FencedConsumer(Failed):
    """Kafka removed this member permanently, for example because another took its group.instance.id."""


class Stopped(Failed):
    """The consumer has to stop because of an event, and continues with that event when restarted."""


class TooManyDeadLetters(Stopped):
    """So many events became dead letters that the cause is not in the events."""


class UnknownEventType(Stopped):
    """An event has a type without a handler, and the consumer is set to unknown="fail"."""


class UntypedRecords(Stopped):
    """No record so far has an event type: it is in another header, and skipping would lose every event."""


class UndeclaredIds(Stopped):
    """An id that is no UUID is in the inbox without its source, as an earlier version stored it.

    Handling the event could repeat its effect, skipping it could lose it: `unscoped_ids` decides.
    """


class NotDelivered(Failed):
    """The copy of a dead letter did not reach its topic. Nothing is lost: the event is retried."""


class UnprovenTransaction(Failed):
    """It is not proven that the transaction was committed, so its offsets are not stored."""


class SwallowedDatabaseError(UnprovenTransaction):
    """A handler caught a database error and returned: PostgreSQL would turn COMMIT into ROLLBACK."""


class TransactionEndedByHandler(UnprovenTransaction):
    """A handler ended the transaction that belongs to the consumer."""


class Reject(Exception):
    """Raised by a handler: this event can never succeed. It becomes a dead letter, without effects."""


class UnreadablePayload(Reject):
    """The payload, key or a header of a record cannot be read: no JSON, not UTF-8, an unknown version."""


class Skip(Exception):
    """Raised by a handler: this event is done. Like a return: what it has written is committed."""
