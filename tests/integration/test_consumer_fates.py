"""Handlers that misbehave in every way at once, over one long session: no event may pay for another.

The statements change every fifty events, so that what a session keeps of them (those it has prepared) is
caught at odd moments.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import psycopg
import pytest

from faulty_handlers import (
    DIVIDE_BY_ZERO,
    HARMLESS,
    Connection,
    apply_fault,
    expected_failures,
    is_permanent,
    random_data,
)
from fix_consumer import Bench, running
from forms import SEED, sized
from outbox_consumers import Consumer, Event, Reject, Skip
from waiting import until

pytestmark = pytest.mark.stack

EVENTS: Final = sized(3_000, 20_000)
KINDS: Final = ("Piped", "Plain", "Lasting", "Batched", "Awaited", "Parked")
INSERT: Final = b"INSERT INTO public.effect (event_id, consumer, key, n) VALUES (%s, 'billing', %s, %s)"


def insert(event: Event) -> tuple[bytes, tuple[UUID, str | None, int]]:
    """Make the statement that writes an event's effect, and its values."""
    n = event.data["n"]
    return b"%b -- %d" % (INSERT, n // 50), (event.id, event.key, n)


def obedient(bench: Bench) -> Consumer:
    """Make a consumer with a handler of each kind that applies the fault of every event."""
    app = bench.app(batch_size=60)

    def placed(conn: Connection, event: Event) -> None:
        apply_fault(conn, event)
        conn.execute(*insert(event))

    app.handler("Piped")(placed)
    app.handler("Plain", pipeline=False)(placed)
    app.handler("Parked", on_failure="park")(placed)

    @app.handler("Lasting", cursor=True)
    def lasting(cursor: psycopg.Cursor[Any], event: Event) -> None:
        apply_fault(cursor.connection, event)
        cursor.execute(*insert(event))

    @app.handler("Awaited")
    async def awaited(conn: psycopg.AsyncConnection[Any], event: Event) -> None:
        match event.data["fault"]:
            case "skips":
                raise Skip
            case "rejects":
                raise Reject("never")
        if event.attempt <= expected_failures(event.data):
            await (await conn.execute(DIVIDE_BY_ZERO)).fetchone()
        await conn.execute(*insert(event))

    @app.batch_handler("Batched", max_size=7)
    def batched(conn: Connection, events: Sequence[Event]) -> None:
        for event in events:
            apply_fault(conn, event)
        conn.cursor().executemany(insert(events[0])[0], [insert(event)[1] for event in events])

    return app


def test_every_event_has_its_own_outcome_only(bench: Bench) -> None:
    chance = random.Random(SEED)
    failures, lasting = 0, dict[UUID, str]()
    for n in range(EVENTS):
        kind, data = chance.choice(KINDS), random_data(chance, n)
        if kind == "Batched" and data["fault"] in {"skips", *(fault.__name__ for fault in HARMLESS)}:
            data["fault"] = ""  # these are of the whole batch
        event_id = bench.send(data, kind=kind, key=f"{kind} {chance.randrange(4)}")
        failures += expected_failures(data)
        if is_permanent(data):
            lasting[event_id] = data["fault"]
    bench.flush()
    app = obedient(bench)
    with running(app):
        until(lambda: app.counters.processed + app.counters.dead_letters >= EVENTS, f"seed {SEED}")
    assert app.counters.failures == failures
    assert bench.query("SELECT count(*) FROM inbox WHERE consumer = 'billing'") == [(EVENTS,)]
    assert bench.query("SELECT count(*) FROM effect WHERE n < 0") == [(0,)]
    letters = {event_id for (event_id,) in bench.query("SELECT event_id FROM inbox_dead_letter")}
    assert letters == {event_id for event_id, fault in lasting.items() if fault == "rejects"}
    bench.sent = [event_id for event_id in bench.sent if event_id not in lasting]
    bench.applied_once()
    bench.applied_in_order()
