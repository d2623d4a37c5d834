"""Billing: writes one invoice per order, however often Kafka delivers the event.

    python examples/billing.py

Kafka comes from OUTBOX_KAFKA_BOOTSTRAP, the database from BILLING_DSN or from libpq's own PGHOST,
PGUSER and so on. Start it several times: the processes share the partitions. Kill it at any moment
and start it again: no invoice is missing or duplicated.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import psycopg

from outbox_consumers import Consumer, Event, Reject
from outbox_consumers.inbox import schema

KAFKA = os.environ.get("OUTBOX_KAFKA_BOOTSTRAP", "kafka:9092")
DSN = os.environ.get("BILLING_DSN", "dbname=billing")

# The inbox records events under the name "billing": consumers with different names each handle an event.
app = Consumer(
    "billing",
    kafka={
        "bootstrap.servers": KAFKA,
        "group.id": "billing",
        "session.timeout.ms": 6000,  # the group notices a killed process after 6 s; Kafka's default is 45 s
    },
    dsn=DSN,
    topics=["outbox.event.order"],
)


@app.handler("OrderPlaced")
def order_placed(conn: psycopg.Connection, event: Event) -> None:
    """Write the invoice of an order.

    `conn` is inside the transaction that also marks the event as handled. Return, and both are
    committed together; raise, and neither is, and the event is delivered again. So there is nothing to check
    here, and nothing to commit.
    """
    order = event.data
    if not isinstance(order, dict) or not isinstance(order.get("total"), int | float):
        raise Reject("an order without a total")  # never succeeds: dead-letter it, do not retry
    conn.execute(
        "INSERT INTO invoice (event_id, order_id, total) VALUES (%s, %s, %s)",
        (event.id, event.key, order["total"]),
    )


def create_tables() -> None:
    """Create the tables of invoices and inbox, as your own migration would. Safe to repeat."""
    with psycopg.connect(DSN) as conn:
        conn.execute(Path(__file__).with_name("billing.sql").read_bytes())
        schema.apply(conn, schema.steps())


if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(asctime)s %(message)s")
    create_tables()
    app.run()
