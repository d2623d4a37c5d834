"""Decide what to do with a batch that Kafka refused. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outbox_connectors.definition import Kafka
from outbox_connectors.record import Row
from outbox_pipeline.errors import Failed
from outbox_pipeline.relay.destinations import TopicUnavailable
from outbox_pipeline.relay.poison import Fault, OnPoison, Search, fault_of, why_undeliverable
from outbox_pipeline.relay.producer import RefusedBatch
from outbox_pipeline.relay.shard_publisher import ShardPublisher


class BrokenRows(RefusedBatch):
    """Rows that cannot become records, found before anything was sent."""

    def __init__(self, found: Sequence[tuple[int, str]]) -> None:
        super().__init__(0, found[0][1])
        self.found = found


@dataclass(frozen=True, slots=True)
class RefusalDecision:
    """What becomes of a refused batch. `rows` None: the batch stays as it is."""

    search: Search
    rows: Sequence[Row] | None = None
    dead_letters: tuple[tuple[Row, str], ...] = ()
    blocks: bool = False  # later rows of the dead letters' aggregates wait
    unwritable: str = ""  # the aggregate type whose topic cannot be written
    wait: bool = False  # before the batch is sent again


def broken(rows: Sequence[Row]) -> BrokenRows | None:
    """Find the rows of a batch that could never become records."""
    found = [(at, cause) for at, row in enumerate(rows) if (cause := why_undeliverable(row))]
    return BrokenRows(found) if found else None


def decide(
    owned: ShardPublisher,
    error: RefusedBatch | TopicUnavailable,
    kafka: Kafka,
    on_poison: OnPoison,
    now: float,
) -> RefusalDecision:
    """Decide on a refused batch. Raises Failed for a row that can never be published, with `stop`."""
    rows = owned.rows
    if isinstance(error, TopicUnavailable):
        at_fault = next(row for row in rows if kafka.topic_of(row.aggregate_type) == error.topic)
        return _without_type(owned, at_fault.aggregate_type)
    if isinstance(error, BrokenRows):
        return _with_dead_letters(owned, error.found, on_poison)
    fault = fault_of(error.code)
    if fault is Fault.NOBODY:
        return RefusalDecision(owned.search, wait=True)
    at = 0 if len(rows) == 1 else error.at
    if at is not None and fault is Fault.ROW:
        return _with_dead_letters(owned, [(at, error.problem)], on_poison)
    if at is not None:
        return _without_type(owned, rows[at].aggregate_type)
    search = owned.search.refused(len(rows))
    return RefusalDecision(search, rows=rows[: search.limit(len(rows))])


def _without_type(owned: ShardPublisher, aggregate_type: str) -> RefusalDecision:
    others = [row for row in owned.rows if row.aggregate_type != aggregate_type]
    return RefusalDecision(Search(), rows=others, unwritable=aggregate_type)


def _with_dead_letters(
    owned: ShardPublisher, found: Sequence[tuple[int, str]], on_poison: OnPoison
) -> RefusalDecision:
    rows = owned.rows
    if on_poison is OnPoison.STOP:
        row, cause = rows[found[0][0]], found[0][1]
        raise Failed(
            f"can never be published: {cause}",
            where=f"row {row.id} of aggregate {row.aggregate_type} {row.aggregate_id}",
            remedy="mend or delete the row, or run with --on-poison block_aggregate",
        )
    causes = dict(found)
    blocked: set[tuple[str, str]] = set()
    kept: list[Row] = []
    dead_letters: list[tuple[Row, str]] = []
    for at, row in enumerate(rows):
        aggregate = (row.aggregate_type, row.aggregate_id)
        if aggregate in blocked:
            continue  # it stays in the outbox until the dead letter is requeued or discarded
        if at in causes:
            dead_letters.append((row, causes[at]))
            if on_poison is OnPoison.BLOCK_AGGREGATE:
                blocked.add(aggregate)
        else:
            kept.append(row)
    return RefusalDecision(
        Search(), rows=kept, dead_letters=tuple(dead_letters), blocks=on_poison is OnPoison.BLOCK_AGGREGATE
    )
