"""`scripts/bench`: measures what was asked for and prints one table."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from benchmarks import backlog, connector_configs, consumers, latency, loops, startup, table
from benchmarks.measures import Figure, Goal, lines
from benchmarks.roads import build
from benchmarks.rounds import Say
from benchmarks.servers import Servers, running

_ALL = ("postgres", "kafka", "connect")
NEEDS = {"latency": _ALL, "backlog": _ALL, "consumers": ("postgres", "kafka"), "cli": ()}
PARTS = tuple(NEEDS)


@dataclass(frozen=True, slots=True)
class Size:
    """How much of each is run."""

    latency_rounds: int
    latency_seconds: float
    backlog_rounds: int
    backlog_events: int
    consumer_rounds: int
    bulk_events: int
    single_events: int
    cli_rounds: int


FULL = Size(2, 10, 3, 100_000, 5, 200_000, 30_000, 20)
QUICK = Size(1, 5, 1, 30_000, 2, 60_000, 8_000, 7)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print."""
    options = _options(argv)
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"bench {time.monotonic() - started:4.0f} s  {text}", file=sys.stderr, flush=True)

    size = QUICK if options.quick else FULL
    parts = options.only or PARTS
    figures: list[Figure] = []
    services = sorted({service for part in parts for service in NEEDS[part]})
    if services:
        with running(options.name, services, keep=options.keep) as servers:
            figures += _on_servers(servers, parts, size, say)
    if "cli" in parts:
        figures += startup.measure(size.cli_rounds, say)
    print(f"\n{os.cpu_count()} cores, {time.monotonic() - started:.0f} s; load {os.getloadavg()[0]:.1f}\n")
    print(table.rendered(lines(figures, GOALS)))
    if "cli" in parts:
        print(f"\nfrom outbox_pipeline import outbox loads: {' '.join(startup.loaded_packages())}")


def _on_servers(servers: Servers, parts: Sequence[str], size: Size, say: Say) -> list[Figure]:
    figures: list[Figure] = []
    if "latency" in parts or "backlog" in parts:
        with psycopg.connect(servers.dsn("shop"), autocommit=True) as conn:
            say("three connectors on one outbox")
            roads = build(servers, conn)
            if "latency" in parts:
                rounds, seconds = size.latency_rounds, size.latency_seconds
                figures += latency.measure(roads, servers.bootstrap, rounds, seconds, say)
            if "backlog" in parts:
                rounds, events = size.backlog_rounds, size.backlog_events
                figures += backlog.measure(roads, servers.bootstrap, rounds, events, say)
    if "consumers" in parts:
        figures += consumers.measure(servers, size.consumer_rounds, size.bulk_events, size.single_events, say)
    return figures


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="one part; may be repeated")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller rounds")
    parser.add_argument("--keep", action="store_true", help="leave the stack running at the end")
    parser.add_argument("--name", default="bench", help="the stack to empty and use (default: bench)")
    return parser.parse_args(argv)


GOALS = (
    Goal(latency.work(99), connector_configs.OURS, at_most=0.1),
    # Two equal configurations differ by a few per cent from round to round.
    Goal(backlog.WORK, connector_configs.OURS, at_least=0.95),
    Goal(consumers.BULK_WORK, loops.BULK, at_least=0.7),
    Goal(consumers.TEXTBOOK_WORK, loops.SINGLE, at_least=8),
    Goal(startup.WORK, startup.HELP, at_most=0.25, absolute=True),
)
