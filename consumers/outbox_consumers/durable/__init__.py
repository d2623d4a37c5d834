"""The durable inbox: a job queue in PostgreSQL for handlers that take long.

`DurableInbox` stores events from Kafka in a table, from which workers take and handle them later.
`DurableInbox.put` adds jobs without Kafka, in the caller's transaction.
"""

from outbox_consumers.durable.inbox import DurableInbox
from outbox_consumers.durable.jobs import Job
from outbox_consumers.durable.status import Count, states, workers
from outbox_consumers.failures.dead_jobs import DeadJob
from outbox_consumers.inbox.job_tables import missing, steps

__all__ = ["Count", "DeadJob", "DurableInbox", "Job", "missing", "states", "steps", "workers"]
