"""Long work: a durable inbox, and the job queue that it is.

`DurableInbox` receives events from Kafka into a table and lets workers handle them in their own time;
`DurableInbox.put` queues jobs without Kafka, in the caller's transaction.
"""

from outbox_consumers.durable.counts import Count, states, workers
from outbox_consumers.durable.inbox import DurableInbox
from outbox_consumers.durable.jobs import Job
from outbox_consumers.failures.dead_jobs import DeadJob
from outbox_consumers.inbox.job_tables import missing, steps

__all__ = ["Count", "DeadJob", "DurableInbox", "Job", "missing", "states", "steps", "workers"]
