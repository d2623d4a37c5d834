"""The way in for a worker's session, at its start and after each that was lost."""

from __future__ import annotations

from threading import Event
from typing import Final

from outbox_connectors.definition import Definition
from outbox_pipeline.ids import publisher
from outbox_pipeline.relay.names import RelayNames
from outbox_pipeline.relay.restored import admit, ahead, last_published
from outbox_pipeline.relay.session import RelaySession
from outbox_pipeline.relay.wakeup import Waiter
from outbox_pipeline.servers import postgres

GATE_SECONDS: Final = 0.2  # between two knocks while the road is being switched
KAFKA_SECONDS: Final = 5.0  # that Kafka has to answer before the wish to stop is looked at again


def enter(
    definition: Definition, names: RelayNames, shards: int, *, transactions: bool, waiter: Waiter, stop: Event
) -> RelaySession | None:
    """Open a session and appear among the workers; None when told to stop before the way in was free.

    The database may be another than before: one that was failed over and has not seen the last batches would
    publish their rows once more. Raises Refused then, and where the road has become another's while a switch
    was waited for; Unreachable, and what psycopg raises.
    """
    published = (
        last_published(definition, names, shards, patience_seconds=KAFKA_SECONDS) if transactions else {}
    )
    session = RelaySession.open(definition, names, shards)
    try:
        while not session.try_enter():
            if stop.is_set():
                session.close()
                return None
            waiter.wait(GATE_SECONDS)
        publisher.check_still_relay(session.conn, definition)
        if ahead(session.conn, names, published):
            # All topics are read for the proof, for longer than a worker's session may be idle.
            with postgres.as_admin(definition, "outboxctl relay") as conn:
                admit(conn, definition, names, published)
    except BaseException:
        session.close()
        raise
    return session
