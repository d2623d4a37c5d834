"""What a handler can do wrong, or oddly: fates that are drawn for events, and met in their first attempts."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

import psycopg

from outbox_consumers import Event, Reject, Skip

Connection: TypeAlias = psycopg.Connection[Any]
Fate: TypeAlias = Callable[[Connection, Event], None]

NO_NUMBER: Final = "SELECT 1 / 0"
STRAY: Final = "INSERT INTO public.effect (n) VALUES (-1)"  # never to be seen


def raises(conn: Connection, event: Event) -> None:
    raise ValueError("not yet")


def fails(conn: Connection, event: Event) -> None:
    conn.execute(STRAY)
    conn.execute(NO_NUMBER)


def swallows(conn: Connection, event: Event) -> None:
    with suppress(psycopg.Error):
        conn.execute(NO_NUMBER).fetchone()


def looks_away(conn: Connection, event: Event) -> None:
    with suppress(psycopg.Error):
        conn.execute(NO_NUMBER)  # a pipeline tells it later


def breaks_off(conn: Connection, event: Event) -> None:
    """Let psycopg prepare a statement behind an error, where the server does nothing."""
    with conn.pipeline():
        conn.execute(NO_NUMBER)
        for _ in range(8):
            conn.execute(f"{STRAY} -- {event.data['n']}".encode())


def commits(conn: Connection, event: Event) -> None:
    conn.execute(STRAY)
    conn.commit()


def repents(conn: Connection, event: Event) -> None:
    """Undo a part and go on."""
    with suppress(psycopg.Error), conn.transaction():
        conn.execute(STRAY)
        conn.execute(NO_NUMBER).fetchone()


def visits(conn: Connection, event: Event) -> None:
    conn.execute("SET LOCAL search_path TO pg_catalog")


def moves(conn: Connection, event: Event) -> None:
    conn.execute("SET search_path TO pg_catalog")


def skips(conn: Connection, event: Event) -> None:
    raise Skip


def rejects(conn: Connection, event: Event) -> None:
    raise Reject("never")


FAILING: Final[tuple[Fate, ...]] = (raises, fails, swallows, looks_away, breaks_off, commits)
HARMLESS: Final[tuple[Fate, ...]] = (repents, visits, moves)
LASTING: Final[tuple[Fate, ...]] = (skips, rejects)  # met in every attempt: these leave no effect
FATES: Final = {fate.__name__: fate for fate in (*FAILING, *HARMLESS, *LASTING)}


def drawn(chance: random.Random, n: int) -> dict[str, Any]:
    """Draw the data of an event: one in twenty-five has a fate, which it meets in one or two attempts."""
    fate = chance.choice(list(FATES)) if chance.random() < 0.04 else ""
    return {"n": n, "fate": fate, "times": chance.choice((1, 1, 2))}


def lasts(data: dict[str, Any]) -> bool:
    """Say whether the event never has an effect."""
    return bool(data["fate"]) and FATES[data["fate"]] in LASTING


def failures_of(data: dict[str, Any]) -> int:
    """Say how often the handler fails with this event; no other event's handler may fail because of it."""
    return data["times"] if data["fate"] and FATES[data["fate"]] in FAILING else 0


def meet(conn: Connection, event: Event) -> None:
    """Let an event meet its fate, if it is time."""
    data = event.data
    if data["fate"] and (lasts(data) or event.attempt <= data["times"]):
        FATES[data["fate"]](conn, event)
