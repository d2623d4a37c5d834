"""Handle each event of the outbox once.

Three layers, each usable alone: `claim` on any connection, `Consumer.batches` for a loop of your own, and
`Consumer` with handlers. `DurableInbox` is for handlers that take long.
"""

from outbox_consumers.consumer import Consumer
from outbox_consumers.durable import DurableInbox, Job
from outbox_consumers.errors import Reject, Skip
from outbox_consumers.event import Event
from outbox_consumers.failures.dead_letter import DeadLetterLimit
from outbox_consumers.handlers.retry import RetryStrategy
from outbox_consumers.inbox.claims import claim, claim_async

__all__ = [
    "Consumer",
    "DeadLetterLimit",
    "DurableInbox",
    "Event",
    "Job",
    "Reject",
    "RetryStrategy",
    "Skip",
    "claim",
    "claim_async",
]
