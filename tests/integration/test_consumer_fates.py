"""Handlers that misbehave in every way at once, over one long session: no event may pay for another.

Each event is drawn a kind of handler and a fate that it meets in its first attempts. The statements change
every fifty events, so that what a session keeps of them (those it has prepared) is caught at odd moments.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias
from uuid import UUID

import psycopg
import pytest

from fix_consumer import Bench, running
from forms import SEED, sized
from outbox_consumers import Consumer, Event, Reject, Skip
from waiting import until

pytestmark = pytest.mark.stack

EVENTS: Final = sized(3_000, 20_000)
KINDS: Final = ("Piped", "Plain", "Lasting", "Batched", "Awaited", "Parked")
INSERT: Final = b"INSERT INTO public.effect (event_id, consumer, key, n) VALUES (%s, 'billing', %s, %s)"
NO_NUMBER: Final = "SELECT 1 / 0"

Connection: TypeAlias = psycopg.Connection[Any]
Fate: TypeAlias = Callable[[Connection, Event], None]


def raises(conn: Connection, event: Event) -> None:
    raise ValueError("not yet")


def fails(conn: Connection, event: Event) -> None:
    conn.execute(NO_NUMBER)


def swallows(conn: Connection, event: Event) -> None:
    with suppress(psycopg.Error):
        conn.execute(NO_NUMBER).fetchone()


def looks_away(conn: Connection, event: Event) -> None:
    with suppress(psycopg.Error):
        conn.execute(NO_NUMBER)  # a pipeline tells it later


def writes_and_fails(conn: Connection, event: Event) -> None:
    write(conn, event)
    conn.execute(NO_NUMBER).fetchone()


def commits(conn: Connection, event: Event) -> None:
    conn.commit()


def repents(conn: Connection, event: Event) -> None:
    """Undo a part and go on: no failure at all."""
    with suppress(psycopg.Error), conn.transaction():
        write(conn, event)
        conn.execute(NO_NUMBER).fetchone()


def visits(conn: Connection, event: Event) -> None:
    conn.execute("SET LOCAL search_path TO pg_catalog")


def moves(conn: Connection, event: Event) -> None:
    conn.execute("SET search_path TO pg_catalog")


def skips(conn: Connection, event: Event) -> None:
    raise Skip


def rejects(conn: Connection, event: Event) -> None:
    raise Reject("never")


FATES: Final[dict[str, Fate]] = {
    fate.__name__: fate
    for fate in (
        *(raises, fails, swallows, looks_away, writes_and_fails, commits),
        *(repents, visits, moves),
        *(skips, rejects),
    )
}
HARMLESS: Final = {"repents", "visits", "moves"}
LASTING: Final = {"skips", "rejects"}  # met in every attempt: these leave no effect


def insert(event: Event) -> tuple[bytes, tuple[UUID, str | None, int]]:
    """Make the statement that writes an event's effect, and its values."""
    n = event.data["n"]
    return b"%b -- %d" % (INSERT, n // 50), (event.id, event.key, n)


def write(conn: Connection, event: Event) -> None:
    conn.execute(*insert(event))


def meet(conn: Connection, event: Event) -> None:
    fate = event.data["fate"]
    if fate and (fate in LASTING or event.attempt <= event.data["times"]):
        FATES[fate](conn, event)


def obedient(bench: Bench) -> Consumer:
    """Make a consumer with a handler of each kind that lets every event meet its fate."""
    app = bench.app(batch_size=60)

    def placed(conn: Connection, event: Event) -> None:
        meet(conn, event)
        write(conn, event)

    app.handler("Piped")(placed)
    app.handler("Plain", pipeline=False)(placed)
    app.handler("Parked", on_failure="park")(placed)

    @app.handler("Lasting", cursor=True)
    def lasting(cursor: psycopg.Cursor[Any], event: Event) -> None:
        meet(cursor.connection, event)
        cursor.execute(*insert(event))

    @app.handler("Awaited")
    async def awaited(conn: psycopg.AsyncConnection[Any], event: Event) -> None:
        match event.data["fate"]:
            case "skips":
                raise Skip
            case "rejects":
                raise Reject("never")
            case str() as fate if fate and event.attempt <= event.data["times"]:
                await (await conn.execute(NO_NUMBER)).fetchone()
        await conn.execute(*insert(event))

    @app.batch_handler("Batched", max_size=7)
    def batched(conn: Connection, events: Sequence[Event]) -> None:
        for event in events:
            meet(conn, event)
        conn.cursor().executemany(insert(events[0])[0], [insert(event)[1] for event in events])

    return app


def drawn(chance: random.Random, n: int) -> tuple[str, dict[str, Any]]:
    """Draw the kind of an event's handler, and its data with its fate."""
    kind = chance.choice(KINDS)
    fate = chance.choice(list(FATES)) if chance.random() < 0.04 else ""
    if kind == "Batched" and fate in ("skips", "repents"):
        fate = ""  # those are of the whole batch
    return kind, {"n": n, "fate": fate, "times": chance.choice((1, 1, 2))}


def failures_of(kind: str, data: dict[str, Any]) -> int:
    """Say how often a handler fails with an event; nobody else's handler may fail because of it."""
    fate = data["fate"]
    harmless = not fate or fate in LASTING or (fate in HARMLESS and kind != "Awaited")
    return 0 if harmless else data["times"]


def test_every_event_meets_its_own_fate_only(bench: Bench) -> None:
    chance = random.Random(SEED)
    failures, lasting = 0, dict[UUID, str]()
    for n in range(EVENTS):
        kind, data = drawn(chance, n)
        event_id = bench.send(data, kind=kind, key=f"{kind} {chance.randrange(4)}")
        failures += failures_of(kind, data)
        if data["fate"] in LASTING:
            lasting[event_id] = data["fate"]
    bench.flush()
    app = obedient(bench)
    with running(app):
        until(lambda: app.counters.processed + app.counters.dead_letters >= EVENTS, f"seed {SEED}")
    assert app.counters.failures == failures
    assert bench.query("SELECT count(*) FROM inbox WHERE consumer = 'billing'") == [(EVENTS,)]
    letters = {event_id for (event_id,) in bench.query("SELECT event_id FROM inbox_dead_letter")}
    assert letters == {event_id for event_id, fate in lasting.items() if fate == "rejects"}
    bench.sent = [event_id for event_id in bench.sent if event_id not in lasting]
    bench.applied_once()
    bench.applied_in_order()
