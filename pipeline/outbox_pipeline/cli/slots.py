"""`outboxctl slots`: every replication slot of the server, with the WAL it keeps and who uses it."""

from __future__ import annotations

import time
from typing import Any

import click

from outbox_connectors.errors import ExitCode, Unreachable
from outbox_pipeline.cli import Invocation, output, pass_invocation
from outbox_pipeline.watch import document
from outbox_pipeline.watch.forecast import forecasts
from outbox_pipeline.watch.formatting import duration, number, size, span
from outbox_pipeline.watch.history import History, point_of, remember
from outbox_pipeline.watch.sample import PostgresSample, Sample, Slot
from outbox_pipeline.watch.sampling import Sampler
from outbox_pipeline.watch.verdict import SecondsLeft, Unseen

HEADER = ("slot", "kind", "database", "held by", "status", "keeps", "xmin age", "left")


@click.command()
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 60),
    default=1.0,
    show_default=True,
    help="Seconds between the two samples that rates are computed from.",
)
@pass_invocation
def slots(invocation: Invocation, interval: float) -> int:
    """List every slot on the server: the WAL it keeps, who uses it, and the time left until it is lost.

    `left` assumes that nothing is consumed from now on. Reads only.
    """
    definition = invocation.definition()
    with Sampler.of(definition, only_postgres=True) as sampler:
        first = sampler.take()
        time.sleep(interval)
        sample = sampler.take()
    postgres = _seen(sample)
    past = remember(History(), first)
    points = (*past.points, point_of(sample))
    rows = []
    for slot in postgres.slots:
        ends = forecasts(past.buckets, points, sample, slot)
        nearest = min(ends, key=lambda end: (end.earliest is None, end.earliest or 0.0)) if ends else None
        rows.append((slot, nearest))
    rows.sort(key=lambda row: (row[0].name != definition.postgres.slot, row[0].name))
    found = [
        document.slot_row(postgres, slot, slot.name == definition.postgres.slot, document.left(nearest))
        for slot, nearest in rows
    ]
    if invocation.json:
        output.json_document({"slots": found, "max_replication_slots": _limit(postgres)})
        return ExitCode.OK
    output.table(
        [_cells(row, slot, nearest) for row, (slot, nearest) in zip(found, rows, strict=True)], HEADER
    )
    output.line(f"{len(found)} of {_limit(postgres)} slots")
    return ExitCode.OK


def _seen(sample: Sample) -> PostgresSample:
    if isinstance(sample.postgres, Unseen):
        raise Unreachable(sample.postgres.reason, remedy=sample.postgres.remedy)
    assert sample.postgres is not None
    return sample.postgres


def _limit(postgres: PostgresSample) -> int:
    return postgres.server.settings.max_replication_slots


def _cells(row: dict[str, Any], slot: Slot, nearest: SecondsLeft | None) -> list[str]:
    held = f"{slot.active_pid} {row['held_by'] or ''}".strip() if slot.active_pid else "nobody"
    if not slot.active_pid and slot.inactive_seconds is not None and not slot.lost:
        held += f" for {duration(slot.inactive_seconds)}"
    ages = [age for age in (row["xmin_age"], row["catalog_xmin_age"]) if age is not None]
    reason = f" ({slot.invalidation_reason})" if slot.invalidation_reason else ""
    return [
        slot.name + (" (ours)" if row["ours"] else ""),
        slot.plugin or slot.kind,
        slot.database or "-",
        held,
        (slot.wal_status or "never used") + reason,
        size(row["retained_bytes"]) if row["retained_bytes"] is not None else "-",
        number(max(ages)) if ages else "-",
        span(nearest.earliest, nearest.expected) if nearest else "-",
    ]
