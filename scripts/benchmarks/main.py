"""`scripts/bench`: run the selected benchmarks and print one table, and how long each one took."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import psycopg
from confluent_kafka import KafkaException

from benchmarks import (
    audit_throughput,
    backlog,
    connector_configs,
    consumers,
    durable_inbox,
    inbox_claims,
    latency,
    plain_loops,
    relay_throughput,
    startup,
    table,
    watch_cost,
)
from benchmarks.connectors import BenchConnectors, build
from benchmarks.figures import Figure, Goal, lines
from benchmarks.rounds import Log
from benchmarks.servers import Servers, running
from benchmarks.sizes import DEFAULT, LONG, QUICK, Size
from outbox_connectors.errors import OutboxError

_ALL = ("postgres", "kafka", "connect")
_NO_CONNECT = ("postgres", "kafka")
NEEDS = {
    "latency": _ALL,
    "backlog": _ALL,
    "consumers": _NO_CONNECT,
    "durable": _NO_CONNECT,
    "inbox": ("postgres",),
    "relay": _NO_CONNECT,
    "audit": _NO_CONNECT,
    "watch": (),  # starts a stack of its own
    "cli": (),
}
PARTS = tuple(NEEDS)
ERRORS = (subprocess.SubprocessError, psycopg.Error, KafkaException, OutboxError, TimeoutError)
DESCRIPTION = "Measure the pipeline and the consumers next to Debezium's defaults and hand-written code."
EPILOG = """\
Starts a stack of its own and stops it at the end. Prints one table with the median and the best round of
every variant, and how long each part took. Takes less than ten minutes on two quiet cores. Exit code: 0
measured, even if a goal was missed; 1 a part failed, and the figures before it were printed; 2 wrong usage.
"""

Durations = dict[str, float]


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print. What was measured before a failure is printed all the same."""
    options = _options(argv)
    started = time.monotonic()

    def log(text: str) -> None:
        print(f"bench {time.monotonic() - started:4.0f} s  {text}", file=sys.stderr, flush=True)

    parts = [part for part in PARTS if part in (options.only or PARTS)]
    figures: list[Figure] = []
    took: Durations = {}
    failure = ""
    try:
        for found in _measured(options, parts, took, log):
            figures += found
    except ERRORS as error:
        failure = str(error)
    if figures:
        print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
        print(table.rendered(lines(figures, GOALS)))
    if "cli" in parts:
        print(f"\nfrom outbox_pipeline import outbox loads: {' '.join(startup.loaded_packages())}")
    print("\n" + table.durations({**took, "total": time.monotonic() - started}))
    if failure:
        sys.exit(f"bench: {failure}")


def _measured(
    options: argparse.Namespace, parts: Sequence[str], took: Durations, log: Log
) -> Iterator[list[Figure]]:
    size: Size = options.size
    if services := sorted({service for part in parts for service in NEEDS[part]}):
        with (
            _timed("stack up", took) as ready,
            running(options.name, services, keep=options.keep) as servers,
            psycopg.connect(servers.dsn("shop"), autocommit=True) as conn,
        ):
            ready()
            measures = _on_servers(servers, conn, parts, size, took, log)
            for part in [part for part in parts if part in measures]:
                with _timed(part, took):
                    figures = measures[part]()
                yield figures
    if "watch" in parts:
        with _timed("watch", took):
            figures = watch_cost.measure(options.name, size.watch_rounds, size.watch_samples, log)
        yield figures
    if "cli" in parts:
        with _timed("cli", took):
            figures = startup.measure(size.cli_rounds, log)
        yield figures


def _on_servers(
    servers: Servers,
    conn: psycopg.Connection,
    parts: Sequence[str],
    size: Size,
    took: Durations,
    log: Log,
) -> Mapping[str, Callable[[], list[Figure]]]:
    """Return the parts that run on the shared stack; creates the connectors if one needs them."""
    found: dict[str, Callable[[], list[Figure]]] = {
        "consumers": lambda: consumers.measure(
            servers, size.consumer_rounds, size.bulk_events, size.single_events, log
        ),
        "durable": lambda: durable_inbox.measure(servers, size.durable_rounds, size.durable_jobs, log),
        "inbox": lambda: inbox_claims.measure(servers, size.inbox_rounds, size.inbox_rows, log),
        "relay": lambda: relay_throughput.measure(
            servers, size.relay_rounds, size.relay_events, size.relay_latency_seconds, log
        ),
        "audit": lambda: audit_throughput.measure(
            servers, size.audit_rounds, audit_throughput.wanted_events(size.audit_events), log
        ),
    }
    if "latency" in parts or "backlog" in parts:
        with _timed("connectors", took):
            log("three connectors on one outbox")
            connectors = build(servers, conn)
        found |= _on_connectors(servers, connectors, size, log)
    return found


def _on_connectors(
    servers: Servers, connectors: BenchConnectors, size: Size, log: Log
) -> Mapping[str, Callable[[], list[Figure]]]:
    bootstrap = servers.bootstrap
    return {
        "latency": lambda: latency.measure(
            connectors, bootstrap, size.latency_rounds, size.latency_seconds, log
        ),
        "backlog": lambda: backlog.measure(
            connectors, bootstrap, size.backlog_rounds, size.backlog_events, log
        ),
    }


@contextmanager
def _timed(part: str, took: Durations) -> Iterator[Callable[[], None]]:
    """Note how long a part took: until the yielded function is called, else until the block ends."""
    began = time.monotonic()

    def end() -> None:
        took.setdefault(part, time.monotonic() - began)

    try:
        yield end
    finally:
        end()


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        *("--only",), action="append", choices=PARTS, metavar="PART",
        help=f"run this part only; may be repeated ({', '.join(PARTS)})",
    )  # fmt: skip
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument(
        *("--quick",), action="store_const", dest="size", const=QUICK, default=DEFAULT,
        help="fewer and smaller rounds",
    )  # fmt: skip
    sizes.add_argument(
        *("--long",), action="store_const", dest="size", const=LONG,
        help="more and larger rounds, an inbox of ten million rows, the memory of a long watch",
    )  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="leave the stack running at the end")
    parser.add_argument(
        "--name", default="bench", help="stack to use; its data is deleted first (default: bench)"
    )
    return parser.parse_args(argv)


GOALS = (
    *audit_throughput.GOALS,
    *relay_throughput.GOALS,
    Goal(latency.work(99), connector_configs.OURS, at_most=0.1),
    # Two equal configurations differ by a few per cent from round to round.
    Goal(backlog.WORK, connector_configs.OURS, at_least=0.95),
    Goal(consumers.BULK_WORK, plain_loops.BULK, at_least=0.7),
    Goal(consumers.SINGLE_WORK, plain_loops.SINGLE_CURSOR, at_least=20_000, absolute=True),
    Goal(consumers.TEXTBOOK_WORK, plain_loops.SINGLE, at_least=8),
    *durable_inbox.GOALS,
    *inbox_claims.GOALS,
    *watch_cost.GOALS,
    Goal(startup.WORK, startup.HELP, at_most=0.25, absolute=True),
)
