"""The alert rules, filled with a pipeline's names and limits."""

from __future__ import annotations

from importlib import resources
from string import Template

from outbox_connectors.definition import Definition

OWN = "alerts.yml"
POSTGRES_EXPORTER = "alerts_postgres_exporter.yml"


def rules(definition: Definition, file: str = OWN) -> str:
    """Fill one of the two rule files. No name of a pipeline or slot in a definition needs quoting."""
    text = resources.files("outbox_pipeline.watch").joinpath(file).read_text("utf-8")
    return Template(text).substitute(
        pipeline=definition.pipeline,
        slot=definition.postgres.slot,
        warn_seconds=f"{definition.watch.warn_left.total_seconds():.0f}",
        critical_seconds=f"{definition.watch.critical_left.total_seconds():.0f}",
    )
