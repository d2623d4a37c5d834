"""What can go wrong while consuming, and the two words a handler may say.

OutboxError                            exit code
├── UsageError                         2  a handler or a setting that cannot be right
│   └── RefusedSetting                 2  a Kafka property that would lose or skip events
├── Unreachable                        6  PostgreSQL or Kafka does not answer, or refuses us
├── Refused
│   ├── ReadOnlyDatabase               7  a standby, or a session that may not write
│   ├── RefusedWindow                  7  an inbox that would forget before its topics do
│   └── SharedSession                  7  a pooler lends the session to others between transactions
└── Failed                             1
    ├── BatchNotCommitted              1  an own loop took the same batch again and again
    ├── FencedConsumer                 1  Kafka says that this member must not go on
    ├── InboxUnusable                  1  no inbox table, or one of another shape
    ├── NotDelivered                   1  the dead-letter topic does not take a letter; tried again
    ├── Stopped                        1  an event failed whose handler says on_failure="stop"
    │   ├── TooManyDeadLetters         1  one event after the other is given up
    │   ├── UndeclaredIds              1  the inbox knows an id that is no UUID, but not from which source
    │   ├── UnknownEventType           1  no handler, and unknown="fail"
    │   └── UntypedRecords             1  no record so far has an event type
    └── UnprovenTransaction            1  nobody can say that the effects are committed
        ├── SwallowedDatabaseError     1  a handler caught a database error and went on
        └── TransactionEndedByHandler  1  a handler committed or rolled back

Exception
├── Reject                             raised by a handler: this event will never succeed
│   └── UnreadablePayload              raised by Event for a payload that is not what it should be
└── Skip                               raised by a handler: nothing (more) to do, mark it as seen
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
    """The inbox table is missing, of another shape, or closed to this role."""


class BatchNotCommitted(Failed):
    """A loop over `Consumer.batches` neither committed nor skipped its batch."""


class FencedConsumer(Failed):
    """Kafka ended this member for good, for example because another one took its group.instance.id."""


class Stopped(Failed):
    """An event failed for good and its handler asks to stop; the consumer goes on with it when restarted."""


class TooManyDeadLetters(Stopped):
    """One event after the other is given up, so it is not the events' fault."""


class UnknownEventType(Stopped):
    """An event of a type that has no handler, and the consumer says unknown="fail"."""


class UntypedRecords(Stopped):
    """No record so far has an event type: it stands in another header, and skipping would lose them all."""


class UndeclaredIds(Stopped):
    """An id that is no UUID is in the inbox as an earlier version stored it, without saying of which source.

    Handling the event could repeat its effect, leaving it out could lose it: `unscoped_ids` decides.
    """


class NotDelivered(Failed):
    """A dead letter did not reach its topic. Nothing is lost: the event is tried again."""


class UnprovenTransaction(Failed):
    """The transaction cannot be proven to be committed, so its offsets are not stored."""


class SwallowedDatabaseError(UnprovenTransaction):
    """A handler caught a database error and returned: PostgreSQL would turn COMMIT into ROLLBACK."""


class TransactionEndedByHandler(UnprovenTransaction):
    """A handler ended the transaction that belongs to the consumer."""


class Reject(Exception):
    """Raised by a handler: this event will never succeed. It becomes a dead letter, without effects."""


class UnreadablePayload(Reject):
    """The payload (or key) of a record is not what the handler asked for: no JSON, not UTF-8."""


class Skip(Exception):
    """Raised by a handler: done with this event. Like return: what it has written stays."""
