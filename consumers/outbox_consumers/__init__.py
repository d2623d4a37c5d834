"""The far side: handle each event once.

Three layers, each usable alone: `claim` on anybody's connection, the own loop of `Consumer.batches`,
and the application with handlers. `DurableInbox` is for handlers that take long.
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
