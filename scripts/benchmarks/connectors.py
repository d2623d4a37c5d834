"""Three connectors on one outbox table, each with its own publication and slot, run in turn."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql

from benchmarks import connector_configs
from benchmarks.connector_configs import DEFAULTS, OURS, TUNED
from benchmarks.servers import ROOT, Servers
from benchmarks.startup import OUTBOXCTL
from outbox_connectors import loading
from outbox_connectors.definition import Definition
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.servers import topics

DEFINITION_FILE = ROOT / "connectors" / "outbox.yaml"
AGGREGATE_TYPE = "order"
TIMEOUT_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class BenchConnector:
    """One of the compared connectors."""

    variant: str
    connector: str
    slot: str
    topic: str


@dataclass(frozen=True, slots=True)
class BenchConnectors:
    """All three, created and stopped; one runs while `running` is entered."""

    client: ConnectClient
    conn: psycopg.Connection[Any]  # the superuser's, in the outbox's database, autocommit
    by_variant: Mapping[str, BenchConnector]
    partitions: int  # of each connector's topic

    @contextmanager
    def running(self, variant: str) -> Iterator[BenchConnector]:
        """Run one connector and stop it at the end, with its slot inactive again."""
        connector = self.by_variant[variant]
        self.client.resume(connector.connector)
        try:
            yield connector
        finally:
            self.stop(connector)

    def stop(self, connector: BenchConnector) -> None:
        """Stop a connector and wait until its slot is inactive."""
        self.client.stop(connector.connector)
        wait_until(lambda: not self._active(connector), f"slot {connector.slot} stays active")

    def _active(self, connector: BenchConnector) -> bool:
        question = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        row = self.conn.execute(question, (connector.slot,)).fetchone()
        return row is not None and bool(row[0])


def build(servers: Servers, conn: psycopg.Connection[Any]) -> BenchConnectors:
    """Create ours with `outboxctl apply`, and the others as people do by hand."""
    definition = loading.load(DEFINITION_FILE, servers.environ)
    subprocess.run([str(OUTBOXCTL), "-f", str(DEFINITION_FILE), "apply"], check=True, stdout=sys.stderr)
    client = ConnectClient(definition.connect)
    ours = BenchConnector(
        OURS,
        definition.connect.connector,
        definition.postgres.slot,
        definition.kafka.topic_of(AGGREGATE_TYPE),
    )
    others = (
        BenchConnector(DEFAULTS, "bench_defaults", "bench_defaults", f"bench.defaults.{AGGREGATE_TYPE}"),
        BenchConnector(TUNED, "bench_tuned", "bench_tuned", f"bench.tuned.{AGGREGATE_TYPE}"),
    )
    partitions = definition.kafka.aggregates[AGGREGATE_TYPE].partitions
    connectors = BenchConnectors(
        client, conn, {connector.variant: connector for connector in (ours, *others)}, partitions
    )
    connectors.stop(ours)
    for connector in others:
        _build_by_hand(connectors, connector, definition)
    return connectors


def _build_by_hand(connectors: BenchConnectors, connector: BenchConnector, definition: Definition) -> None:
    """Create publication, slot and topic like ours, and the connector in state STOPPED."""
    name = sql.Identifier(connector.slot)
    table = sql.Identifier(definition.outbox.table.schema, definition.outbox.table.name)
    publication = sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish = 'insert')")
    connectors.conn.execute(publication.format(name, table))
    connectors.conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (connector.slot,))
    spec = definition.kafka.aggregates[AGGREGATE_TYPE]
    # Without this topic the logical messages of the others would block the connector of the defaults.
    messages = replace(spec, name=f"{connector.slot}.message", partitions=1)
    topics.create(definition.kafka, [replace(spec, name=connector.topic), messages])
    applied = connectors.client.config(definition.connect.connector) or {}
    database = {key: value for key, value in applied.items() if key.startswith("database.")}
    render = connector_configs.tuned if connector.variant == TUNED else connector_configs.defaults
    topic = connector.topic.replace(AGGREGATE_TYPE, "${routedByValue}")
    connectors.client.create(
        connector.connector, render(connector.slot, database, topic), initial_state="STOPPED"
    )


def wait_until(
    condition: Callable[[], bool], problem: str, seconds: float = TIMEOUT_SECONDS, every: float = 0.05
) -> None:
    """Poll every `every` seconds. Raises TimeoutError with `problem` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{problem} after {seconds:.0f} s")
        time.sleep(every)
