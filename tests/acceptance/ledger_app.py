"""A consumer whose table would show every repeated, missing or reordered effect: nothing in it is unique."""

from __future__ import annotations

import os

import psycopg

from outbox_consumers import Consumer, Event

app = Consumer(
    "ledger",
    kafka={
        "bootstrap.servers": os.environ["OUTBOX_KAFKA_BOOTSTRAP"],
        "group.id": os.environ.get("LEDGER_GROUP", "ledger"),
    },
    dsn=os.environ["LEDGER_DSN"],
    topics=[os.environ["LEDGER_TOPIC"]],
)


@app.handler("Counted")
def counted(conn: psycopg.Connection, event: Event) -> None:
    """Append what arrived, as it arrived."""
    conn.execute(
        "INSERT INTO effect (event_id, aggregate_id, n) VALUES (%s, %s, %s)",
        (event.id, event.key, event.data["n"]),
    )
