"""Definition files for tests: one that is right, and ways to change it."""

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


def definition(extra: str = "", environ: Mapping[str, str] | None = None) -> Definition:
    """Load the smallest definition with more sections appended."""
    return loads(MINIMAL + extra, source="outbox.yaml", environ=environ or {})
