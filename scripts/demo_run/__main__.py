"""Run as `python -m demo_run`; scripts/demo does."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import NoReturn

import psycopg

from demo_run.ledger import Ledger, table
from demo_run.places import Places
from demo_run.roads import DEFINITION, ROOT, Broken, Compose, Local, Road
from demo_run.story import Progress, Say, Story
from outbox_connectors import loading
from outbox_pipeline.errors import OutboxError

ORDERS = 10_000
BATCH = 10  # orders in a transaction
RATE = 50  # transactions a second, so that there is something to see
PATIENCE_SECONDS = 180.0  # without any movement


def main() -> int:
    """Run the demo; 0 when the ledger holds."""
    options = _options()
    signal.signal(signal.SIGTERM, _interrupt)
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:5.0f} s  {text}", flush=True)

    road: Road = Compose() if options.stack == "compose" else Local(options.name)
    try:
        return _demo(road, options.orders, say)
    except (Broken, OutboxError, psycopg.Error) as error:
        print(f"demo: failed: {' '.join(str(error).split())}", flush=True)
    except KeyboardInterrupt:
        print("demo: interrupted", flush=True)
    finally:
        road.stop_applications()
    return 1


def _demo(road: Road, orders: int, say: Say) -> int:
    say("starting PostgreSQL, Kafka and Kafka Connect, and provisioning the pipeline")
    road.up()
    definition = loading.load(ROOT / DEFINITION, road.environ)
    say("starting billing, which writes an invoice for each order")
    road.start_billing()
    places = Places.open(road.environ, definition)
    try:
        say(f"starting the shop: {orders:,} orders, and some that are rolled back ({places.run})")
        shop = road.start_shop(
            *("--orders", str(orders), "--batch", str(BATCH), "--rate", str(RATE), "--run", places.run)
        )
        try:
            came = Story(road, places, Progress(orders), say).run(shop, PATIENCE_SECONDS)
        finally:
            _end(shop)
        say("every order has its invoice; comparing the ids" if came else "comparing the ids all the same")
        road.stop_applications()
        places.read_topics_to_the_end()
        ledger = Ledger(orders, places.written(), places.delivered, places.claimed(), places.applied())
    finally:
        places.close()
    _show(ledger, road)
    return 0 if ledger.holds else 1


def _show(ledger: Ledger, road: Road) -> None:
    print()
    for line in table(ledger.rows(), ("ids of this run", "distinct", "repeated")):
        print(f"    {line}")
    print()
    for complaint in ledger.complaints():
        print(f"    {complaint}")
    if ledger.holds:
        print(f"    {ledger.redelivered:,} records came again after the kills; the inbox absorbed them.")
    print("\nThe stack is left running. Try next:\n")
    for command in road.next_commands():
        print(f"    {command}")
    print(f"\n{ledger.last_line()}", flush=True)


def _end(shop: subprocess.Popen[bytes]) -> None:
    if shop.poll() is None:
        shop.terminate()
        shop.wait()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description="Send orders through the whole road, kill processes on the way, compare the ids.",
    )
    parser.add_argument("--stack", choices=("local", "compose"), default="local", help="default: local")
    local = os.environ.get("OUTBOX_STACK", "local")
    parser.add_argument("--name", default=local, help=f"with --stack local: which one (default: {local})")
    parser.add_argument("--orders", type=_count, default=ORDERS, help=f"default: {ORDERS}")
    return parser.parse_args()


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError("at least one order")
    return int(text)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
