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

from demo_run.id_reader import IdReader
from demo_run.reconciliation import Reconciliation, table
from demo_run.scenario import Log, RunProgress, Scenario
from demo_run.stacks import DEFINITION, ROOT, ComposeStack, DemoFailure, DemoStack, LocalStack
from outbox_connectors import loading
from outbox_pipeline.errors import OutboxError

ORDERS = 10_000
BATCH = 10  # orders per transaction
RATE = 50  # transactions per second, slow enough to follow on the screen
STALL_SECONDS = 180.0  # give up when no order was written or invoiced for so long


def main() -> int:
    """Run the demo. Returns 0 when every order has exactly one invoice, else 1."""
    options = _options()
    signal.signal(signal.SIGTERM, _interrupt)
    started = time.monotonic()

    def log(text: str) -> None:
        print(f"{time.monotonic() - started:5.0f} s  {text}", flush=True)

    stack: DemoStack = ComposeStack() if options.stack == "compose" else LocalStack(options.name)
    try:
        return _demo(stack, options.orders, log)
    except (DemoFailure, OutboxError, psycopg.Error) as error:
        print(f"demo: failed: {' '.join(str(error).split())}", flush=True)
    except KeyboardInterrupt:
        print("demo: interrupted", flush=True)
    finally:
        stack.stop_applications()
    return 1


def _demo(stack: DemoStack, orders: int, log: Log) -> int:
    log("starting PostgreSQL, Kafka and Kafka Connect, and provisioning the pipeline")
    stack.up()
    definition = loading.load(ROOT / DEFINITION, stack.environ)
    log("starting billing, which writes one invoice per order")
    stack.start_billing()
    reader = IdReader.open(stack.environ, definition)
    try:
        log(f"starting the shop: {orders:,} orders, plus some that are rolled back ({reader.run})")
        shop = stack.start_shop(
            *("--orders", str(orders), "--batch", str(BATCH), "--rate", str(RATE), "--run", reader.run)
        )
        try:
            complete = Scenario(stack, reader, RunProgress(orders), log).run(shop, STALL_SECONDS)
        finally:
            _terminate(shop)
        log("every order has its invoice; comparing the ids" if complete else "comparing the ids anyway")
        stack.stop_applications()
        reader.read_topics_to_the_end()
        result = Reconciliation(
            orders, reader.written(), reader.delivered, reader.claimed(), reader.applied()
        )
    finally:
        reader.close()
    _print_result(result, stack)
    return 0 if result.passed else 1


def _print_result(result: Reconciliation, stack: DemoStack) -> None:
    print()
    for line in table(result.rows(), ("ids of this run", "distinct", "repeated")):
        print(f"    {line}")
    print()
    for problem in result.problems():
        print(f"    {problem}")
    if result.passed:
        print(f"    {result.redelivered:,} records were redelivered after the kills; the inbox ignored them.")
    print("\nThe stack is left running. Try next:\n")
    for command in stack.next_commands():
        print(f"    {command}")
    print(f"\n{result.last_line()}", flush=True)


def _terminate(shop: subprocess.Popen[bytes]) -> None:
    if shop.poll() is None:
        shop.terminate()
        shop.wait()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description="Send orders through the pipeline, kill processes meanwhile, compare the event ids.",
    )
    parser.add_argument(
        "--stack", choices=("local", "compose"), default="local", help="where to run (default: local)"
    )
    local = os.environ.get("OUTBOX_STACK", "local")
    parser.add_argument("--name", default=local, help=f"name of the local stack (default: {local})")
    orders = f"number of orders to commit (default: {ORDERS})"
    parser.add_argument("--orders", metavar="N", type=_count, default=ORDERS, help=orders)
    return parser.parse_args()


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError("must be a positive number")
    return int(text)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
