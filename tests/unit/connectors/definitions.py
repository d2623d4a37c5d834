"""Definition files for tests: the smallest one, one with every key, and a way to add to the smallest."""

from __future__ import annotations

from collections.abc import Mapping

from outbox_connectors.definition import Definition
from outbox_connectors.loading import loads

MINIMAL = """\
pipeline: shop
postgres:
  connector:
    host: db
    database: shop
    user: shop_cdc
    password: ${env:CDC}
kafka:
  client: {bootstrap.servers: "kafka:9092"}
"""

FULL = """\
pipeline: shop
postgres:
  admin: "host=db user=postgres"
  connector: {host: db, port: 6432, database: Shop, user: cdc, password: "${file:/s:p}",
    role_password: "123", sslmode: verify-full, ssl: {sslrootcert: /ca.pem}}
  slot: other
  publication: other
  failover: no
outbox: {table: sales.events, writers: [a, b], payload: bytea, partition: daily, keep: 1h 30m}
kafka:
  client: {bootstrap.servers: k, enable.ssl.certificate.verification: true, socket.timeout.ms: 1000}
  topic: ev.{aggregate_type}.v1
  defaults: {partitions: 3, replication_factor: 3, config: {retention.ms: 1000}}
  aggregates: {order: {partitions: 12, config: {cleanup.policy: compact}}, payment: }
connect:
  url: https://connect.example/prefix
  connector: c
  topic_prefix: p
  auth: {user: u, password: "1"}
  config: {poll.interval.ms: 50}
watch:
  {ticker: off, warn: {seconds_left: 2h}, critical: {seconds_left: 5m}, groups: [g], disk: {free_from: 1GiB}}
"""


def definition(extra: str = "", environ: Mapping[str, str] | None = None) -> Definition:
    """Load the smallest definition with more sections appended."""
    return loads(MINIMAL + extra, source="outbox.yaml", environ=environ or {})
