"""`scripts/bench`: measures what was asked for and prints one table."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg
from confluent_kafka import KafkaException

from benchmarks import (
    auditing,
    backlog,
    connector_configs,
    consumers,
    durable,
    latency,
    loops,
    relaying,
    remembering,
    startup,
    table,
    watching,
)
from benchmarks.measures import Figure, Goal, lines
from benchmarks.roads import build
from benchmarks.rounds import Say
from benchmarks.servers import Servers, running
from outbox_connectors.errors import OutboxError

_ALL = ("postgres", "kafka", "connect")
_NO_CONNECT = ("postgres", "kafka")
NEEDS = {
    "latency": _ALL,
    "backlog": _ALL,
    "consumers": _NO_CONNECT,
    "durable": _NO_CONNECT,
    "inbox": ("postgres",),
    "audit": ("postgres", "kafka"),
    "relay": _NO_CONNECT,
    "watch": (),
    "cli": (),
}
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
    durable_rounds: int
    durable_jobs: int
    watch_rounds: int
    watch_samples: int
    cli_rounds: int


FULL = Size(2, 10, 3, 100_000, 5, 200_000, 30_000, 3, 40_000, 7, 10_000, 20)
QUICK = Size(1, 5, 1, 30_000, 2, 60_000, 8_000, 1, 20_000, 3, 2_000, 7)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print. What was measured before a failure is printed all the same."""
    options = _options(argv)
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"bench {time.monotonic() - started:4.0f} s  {text}", file=sys.stderr, flush=True)

    parts = options.only or PARTS
    figures: list[Figure] = []
    failure = ""
    try:
        for some in _measured(options, parts, say):
            figures += some
    except (subprocess.SubprocessError, psycopg.Error, KafkaException, OutboxError, TimeoutError) as error:
        failure = str(error)
    if figures:
        seconds = time.monotonic() - started
        print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, took {seconds:.0f} s\n")
        print(table.rendered(lines(figures, GOALS)))
    if "cli" in parts:
        print(f"\nfrom outbox_pipeline import outbox loads: {' '.join(startup.loaded_packages())}")
    if failure:
        sys.exit(f"bench: {failure}")


def _measured(options: argparse.Namespace, parts: Sequence[str], say: Say) -> Iterator[list[Figure]]:
    size = QUICK if options.quick else FULL
    services = sorted({service for part in parts for service in NEEDS[part]})
    if services:
        with running(options.name, services, keep=options.keep) as servers:
            yield from _on_servers(servers, parts, size, say)
    if "watch" in parts:
        yield watching.measure(options.name, size.watch_rounds, size.watch_samples, say)
    if "cli" in parts:
        yield startup.measure(size.cli_rounds, say)


def _on_servers(servers: Servers, parts: Sequence[str], size: Size, say: Say) -> Iterator[list[Figure]]:
    if "latency" in parts or "backlog" in parts:
        with psycopg.connect(servers.dsn("shop"), autocommit=True) as conn:
            say("three connectors on one outbox")
            roads = build(servers, conn)
            if "latency" in parts:
                rounds, seconds = size.latency_rounds, size.latency_seconds
                yield latency.measure(roads, servers.bootstrap, rounds, seconds, say)
            if "backlog" in parts:
                rounds, events = size.backlog_rounds, size.backlog_events
                yield backlog.measure(roads, servers.bootstrap, rounds, events, say)
    if "consumers" in parts:
        yield consumers.measure(servers, size.consumer_rounds, size.bulk_events, size.single_events, say)
    if "durable" in parts:
        yield durable.measure(servers, size.durable_rounds, size.durable_jobs, say)
    if "inbox" in parts:
        yield remembering.measure(servers, remembering.ROWS[size is QUICK], say)
    if "relay" in parts:
        rounds, events, seconds = relaying.SIZES[size is QUICK]
        yield relaying.measure(servers, rounds, events, seconds, say)
    if "audit" in parts:
        yield auditing.measure(servers, auditing.EVENTS[size is QUICK], say)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="one part; may be repeated")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller rounds")
    parser.add_argument("--keep", action="store_true", help="leave the stack running at the end")
    parser.add_argument("--name", default="bench", help="the stack to empty and use (default: bench)")
    return parser.parse_args(argv)


GOALS = (
    *auditing.GOALS,
    *relaying.GOALS,
    Goal(latency.work(99), connector_configs.OURS, at_most=0.1),
    # Two equal configurations differ by a few per cent from round to round.
    Goal(backlog.WORK, connector_configs.OURS, at_least=0.95),
    Goal(consumers.BULK_WORK, loops.BULK, at_least=0.7),
    Goal(consumers.SINGLE_WORK, loops.SINGLE_CURSOR, at_least=20_000, absolute=True),
    Goal(consumers.TEXTBOOK_WORK, loops.SINGLE, at_least=8),
    *durable.GOALS,
    *remembering.GOALS,
    Goal(watching.SAMPLE, watching.way(watching.SOME), at_most=50, absolute=True),
    Goal(watching.SAMPLE, watching.way(watching.MANY), at_most=20),
    *(
        Goal(watching.MEMORY, watching.samples_of(s.watch_samples), at_most=5, absolute=True)
        for s in (FULL, QUICK)
    ),
    Goal(watching.STATUS, "outboxctl status", at_most=1.5, absolute=True),
    Goal(watching.SCRAPE, watching.way(watching.MANY), at_most=10, absolute=True),
    Goal(startup.WORK, startup.HELP, at_most=0.25, absolute=True),
)
