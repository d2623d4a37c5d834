"""The runbook for a lost slot, step by step as the guide writes it: the gap is found by id and closed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fix_provision import NewSite, Pipeline
from fix_stack import Stack
from waiting import until

pytestmark = [pytest.mark.stack, pytest.mark.slow]


@pytest.fixture
def pipeline(new_site: NewSite, stack: Stack, tmp_path: Path) -> Iterator[Pipeline]:
    """A pipeline of its own, destroyed with its data at the end."""
    made = Pipeline(new_site(stack, stack.environ["OUTBOX_CDC_PASSWORD"]), tmp_path)
    yield made
    made.run("destroy", "--yes", "--data")


def test_the_gap_of_a_lost_slot_is_found_by_id_and_closed(pipeline: Pipeline) -> None:
    assert pipeline.run("apply").code == 0

    def send(count: int) -> list[str]:
        return [pipeline.run("send", "order", "42", "OrderPlaced", "{}").out.strip() for _ in range(count)]

    def missing() -> list[str]:
        return list(pipeline.run("--json", "audit").document()["missing"])

    send(2)
    until(lambda: missing() == [])
    assert pipeline.run("connectors", "stop").code == 0
    gap = send(2)
    pipeline.sql("SELECT pg_drop_replication_slot({slot})")
    gap += send(1)

    made = pipeline.run("apply", "--no-wait")
    assert "slot" in made.err
    assert pipeline.run("connectors", "resume").code == 7, "the old offset belongs to the slot that is gone"
    assert pipeline.run("connectors", "offsets", "reset", "--yes").code == 0
    assert pipeline.run("connectors", "resume").code == 0

    send(1)
    until(lambda: set(missing()) == set(gap))
    assert pipeline.run("audit").code == 5
    ids = [word for event_id in gap for word in ("--id", event_id)]
    assert pipeline.run("replay", *ids, "--reason", "lost slot").code == 0
    closed = pipeline.run("--json", "audit")
    assert closed.code == 0
    assert closed.document()["missing"] == []
    assert closed.document()["written"] == 6
    assert pipeline.run("plan").code == 0
