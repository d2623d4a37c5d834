"""The consumer of the storm. Nothing in its table is unique: every repeated effect would show."""

from __future__ import annotations

import json
import os
import time

import psycopg

from outbox_consumers import Consumer, Event

app = Consumer(
    "billing",
    kafka=json.loads(os.environ["STORM_KAFKA"]),
    dsn=os.environ["STORM_DSN"],
    topics=[os.environ["STORM_TOPIC"]],
    batch_size=50,
    idle_timeout=1,
)


@app.handler("Placed")
def placed(conn: psycopg.Connection, event: Event) -> None:
    """Append what arrived, slowly enough that a kill hits open transactions."""
    time.sleep(0.0005)
    conn.execute(
        "INSERT INTO effect (event_id, consumer, key, n) VALUES (%s, 'billing', %s, %s)",
        (event.id, event.key, event.data["n"]),
    )
