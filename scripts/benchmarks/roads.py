"""Three roads out of one outbox table: each its own publication, slot and connector, run in turns."""

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
from outbox_pipeline import topics
from outbox_pipeline.connect.client import ConnectClient

DEFINITION_FILE = ROOT / "connectors" / "outbox.yaml"
AGGREGATE_TYPE = "order"
PATIENCE_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Road:
    """One way out of the outbox table."""

    way: str
    connector: str
    slot: str
    topic: str


@dataclass(frozen=True, slots=True)
class Roads:
    """All three, built and stopped; one runs while `driving` is entered."""

    client: ConnectClient
    conn: psycopg.Connection[Any]  # the superuser's, in the outbox's database, autocommit
    by_way: Mapping[str, Road]
    partitions: int  # of each road's topic

    @contextmanager
    def driving(self, way: str) -> Iterator[Road]:
        """Run the connector of one road and stop it at the end, with its slot free again."""
        road = self.by_way[way]
        self.client.resume(road.connector)
        try:
            yield road
        finally:
            self.stop(road)

    def stop(self, road: Road) -> None:
        """Stop a connector and wait until its slot is free."""
        self.client.stop(road.connector)
        wait_until(lambda: not self._active(road), f"slot {road.slot} stays active")

    def _active(self, road: Road) -> bool:
        question = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        row = self.conn.execute(question, (road.slot,)).fetchone()
        return row is not None and bool(row[0])


def build(servers: Servers, conn: psycopg.Connection[Any]) -> Roads:
    """Let `outboxctl apply` build ours, and the others beside it the way people do by hand."""
    definition = loading.load(DEFINITION_FILE, servers.environ)
    subprocess.run([str(OUTBOXCTL), "-f", str(DEFINITION_FILE), "apply"], check=True, stdout=sys.stderr)
    client = ConnectClient(definition.connect)
    ours = Road(
        OURS,
        definition.connect.connector,
        definition.postgres.slot,
        definition.kafka.topic_of(AGGREGATE_TYPE),
    )
    others = (
        Road(DEFAULTS, "bench_defaults", "bench_defaults", f"bench.defaults.{AGGREGATE_TYPE}"),
        Road(TUNED, "bench_tuned", "bench_tuned", f"bench.tuned.{AGGREGATE_TYPE}"),
    )
    partitions = definition.kafka.aggregates[AGGREGATE_TYPE].partitions
    roads = Roads(client, conn, {road.way: road for road in (ours, *others)}, partitions)
    roads.stop(ours)
    for road in others:
        _build_by_hand(roads, road, definition)
    return roads


def _build_by_hand(roads: Roads, road: Road, definition: Definition) -> None:
    """Make publication, slot and topic like ours, and the connector of `connector_configs`, stopped."""
    name = sql.Identifier(road.slot)
    table = sql.Identifier(definition.outbox.table.schema, definition.outbox.table.name)
    publication = sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish = 'insert')")
    roads.conn.execute(publication.format(name, table))
    roads.conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (road.slot,))
    spec = definition.kafka.aggregates[AGGREGATE_TYPE]
    # Without this topic the logical messages of the others would block the connector of the defaults.
    messages = replace(spec, name=f"{road.slot}.message", partitions=1)
    topics.create(definition.kafka, [replace(spec, name=road.topic), messages])
    applied = roads.client.config(definition.connect.connector) or {}
    database = {key: value for key, value in applied.items() if key.startswith("database.")}
    render = connector_configs.tuned if road.way == TUNED else connector_configs.defaults
    topic = road.topic.replace(AGGREGATE_TYPE, "${routedByValue}")
    roads.client.create(road.connector, render(road.slot, database, topic), initial_state="STOPPED")


def wait_until(
    reached: Callable[[], bool], problem: str, seconds: float = PATIENCE_SECONDS, every: float = 0.05
) -> None:
    """Poll `every` so many seconds. Raises TimeoutError with `problem` when it takes too long."""
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{problem} after {seconds:.0f} s")
        time.sleep(every)
