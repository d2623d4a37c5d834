"""A shop that commits each order in one transaction with the event about it.

    python examples/shop.py --orders 1000      commit that many, as fast as possible
    python examples/shop.py --rate 5           five per second, until Ctrl-C

It connects the way every PostgreSQL program does, with PGHOST, PGDATABASE, PGUSER and so on. Its role
needs INSERT on the outbox table and nothing else of the pipeline: it uses neither Kafka nor Debezium.
"""

from __future__ import annotations

import argparse
import itertools
import random
import signal
import sys
import time
from pathlib import Path

import psycopg

from outbox_pipeline import outbox

CUSTOMERS = ("Ada", "Grace", "Edsger", "Barbara", "Donald", "Margaret", "Leslie", "Frances")
DECLINED_EVERY = 20


class CardDeclined(Exception):
    """The customer's bank declined the payment."""


def place_order(conn: psycopg.Connection, total: int, *, run: str | None, declined: bool = False) -> None:
    """Commit one order and its event, or neither of them.

    Both are written on the same connection, in the same transaction. That is the whole outbox
    pattern: there is no moment at which one exists without the other.
    """
    customer = random.choice(CUSTOMERS)
    with conn.transaction():
        order = conn.execute(
            "INSERT INTO orders (customer, total) VALUES (%s, %s) RETURNING id", (customer, total)
        ).fetchone()
        assert order is not None
        outbox.add(
            conn,
            aggregate_type="order",  # decides the topic: outbox.event.order
            aggregate_id=str(order[0]),  # the record's key: events of one order stay in order
            event_type="OrderPlaced",  # decides the handler in the consumer
            payload={"customer": customer, "total": total},
            correlation_id=run,  # becomes a header of the record, to trace one run
        )
        if declined:
            raise CardDeclined  # rolls back the order and its event


def place_orders(
    conn: psycopg.Connection, totals: list[int], *, run: str | None, declined: bool = False
) -> None:
    """Commit many orders and their events at once: one round trip for the orders, one for the events."""
    customers = random.choices(CUSTOMERS, k=len(totals))
    with conn.transaction():
        orders = conn.execute(
            "INSERT INTO orders (customer, total) SELECT * FROM unnest(%s::text[], %s::integer[])"
            " RETURNING id, customer, total",
            (customers, totals),
        ).fetchall()
        outbox.add_many(
            conn,
            (
                outbox.event(
                    aggregate_type="order",
                    aggregate_id=str(number),
                    event_type="OrderPlaced",
                    payload={"customer": customer, "total": total},
                    correlation_id=run,
                )
                for number, customer, total in orders
            ),
        )
        if declined:
            raise CardDeclined


def main() -> None:
    """Place orders until enough are committed."""
    parser = argparse.ArgumentParser(description="Commit orders, each with its event, until interrupted.")
    parser.add_argument("--orders", type=int, metavar="N", help="exit after N committed orders")
    parser.add_argument("--rate", type=float, metavar="N", help="maximum transactions per second")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="orders per transaction")
    parser.add_argument("--run", metavar="NAME", help="correlation_id of the events")
    options = parser.parse_args()
    told_to_stop: list[int] = []
    for stop in (signal.SIGTERM, signal.SIGINT):  # the current transaction is finished first
        signal.signal(stop, lambda number, frame: told_to_stop.append(number))

    committed = rolled_back = 0
    with psycopg.connect(autocommit=True) as conn:  # each transaction is opened explicitly, see above
        conn.execute(Path(__file__).with_name("shop.sql").read_bytes())
        for number in itertools.count(1):
            size = min(options.batch, (options.orders or sys.maxsize) - committed)
            if size == 0 or told_to_stop:
                break
            totals = [random.randrange(1, 1000) for _ in range(size)]
            declined = number % DECLINED_EVERY == 0
            try:
                if options.batch == 1:
                    place_order(conn, totals[0], run=options.run, declined=declined)
                else:
                    place_orders(conn, totals, run=options.run, declined=declined)
                committed += size
            except CardDeclined:
                rolled_back += size
            if number % 100 == 0:
                print(f"shop: {committed} orders committed, {rolled_back} rolled back", flush=True)
            due = time.monotonic() + 1 / options.rate if options.rate else 0.0
            while not told_to_stop and (left := due - time.monotonic()) > 0:
                time.sleep(min(left, 0.1))
    print(f"shop: {committed} orders committed, {rolled_back} rolled back", flush=True)


if __name__ == "__main__":
    main()
