"""Run events through an application's handlers on a test's connection, without Kafka and without a commit."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg

from outbox_consumers.errors import Reject, Skip
from outbox_consumers.event import Event
from outbox_consumers.failures.parked import queue_of
from outbox_consumers.handlers.routes import Route, Routes
from outbox_consumers.inbox.claims import claim


@dataclass(slots=True)
class Result:
    """The numbers of events by outcome, and the errors that handlers raised."""

    processed: int = 0
    duplicates: int = 0
    parked: int = 0
    dead: int = 0
    failed: int = 0
    skipped: int = 0
    errors: list[Exception] = field(default_factory=list)


def run(
    routes: Routes, consumer: str, table: str, conn: psycopg.Connection[Any], events: Iterable[Event]
) -> Result:
    """Make one attempt to handle each event, in a savepoint of the connection's transaction."""
    result = Result()
    parked: set[bytes] = set()
    for event in events:
        route = routes.untyped if event.raw_type is None else routes.find(event.raw_type)
        if route is None:
            result.skipped += 1
        elif queue_of(event) in parked:
            result.parked += 1
        else:
            event._route = route
            try:
                _one(route, consumer, table, conn, event, result)
            except Reject as reason:
                result.dead += 1
                result.errors.append(reason)
                with conn.transaction():
                    claim(conn, consumer, [event.id], table=table)
            except Exception as error:
                result.errors.append(error)
                if route.on_failure == "park":
                    parked.add(queue_of(event))
                    result.parked += 1
                else:
                    result.failed += 1
    return result


def _one(
    route: Route, consumer: str, table: str, conn: psycopg.Connection[Any], event: Event, result: Result
) -> None:
    # A handler that catches a database error and returns fails here too: the savepoint cannot be released.
    with conn.transaction():
        if not claim(conn, consumer, [event.id], table=table):
            result.duplicates += 1
            return
        with suppress(Skip):
            route.call(conn, event)
    result.processed += 1
