"""The relay: publishes rows of the outbox to Kafka without Connect, with the bytes Debezium would write.

    from outbox_pipeline import relay

    relay.run(definition, relay.Settings(workers=4), say=print, stop=threading.Event())

Order per aggregate is kept: aggregates are hashed onto shards, a shard has one owner, rows go in the
order of `position`. That is the order of commits for writers that take turns on an aggregate (a row
lock, a version that must match). Transactions that write one aggregate at the same time have no order
of their own, with the relay or with Debezium.

Exactly once into the topic: a read_committed reader sees every event once, whatever is killed or
frozen when. With `transactions=False`: at least once.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

import psycopg

from outbox_connectors.definition import Definition
from outbox_pipeline.errors import Unreachable
from outbox_pipeline.relay import admission
from outbox_pipeline.relay.counters import RelayCounters
from outbox_pipeline.relay.names import relay_names
from outbox_pipeline.relay.poison import OnPoison
from outbox_pipeline.relay.settings import Mode, RelaySettings
from outbox_pipeline.relay.supervisor import supervise
from outbox_pipeline.relay.wakeup import Waiter
from outbox_pipeline.relay.worker import RelayWorker
from outbox_pipeline.servers import postgres

__all__ = ["Mode", "OnPoison", "RelayCounters", "RelaySettings", "run"]


def run(
    definition: Definition,
    settings: RelaySettings,
    *,
    say: Callable[[str], None],
    stop: Event,
    waiter: Waiter | None = None,
) -> RelayCounters:
    """Relay until `stop` is set, or until the outbox is empty where the settings say so.

    One worker runs in this thread; more run as processes of their own. `waiter.wake()` makes a change
    of `stop` noticed at once, also from a signal handler. Batches in flight are finished before it
    returns. Raises Failed (not set up), Refused (a connector or another pipeline reads the same
    outbox) and Unreachable; a server that goes away later is waited for.
    """
    try:
        with postgres.as_admin(definition, "outboxctl relay") as conn:
            shards = admission.check_start(conn, definition, settings)
    except psycopg.OperationalError as error:
        problem = " ".join((error.diag.message_primary or str(error)).split())
        where = f"PostgreSQL, database {definition.postgres.connector.database}"
        raise Unreachable(problem, where=where, remedy="run it again") from error
    waiter = waiter or Waiter()
    if settings.workers > 1:
        return supervise(definition, shards, settings, say=say, stop=stop, waiter=waiter)
    worker = RelayWorker(
        definition, relay_names(definition), shards, settings, say=say, waiter=waiter, stop=stop
    )
    return worker.run()
