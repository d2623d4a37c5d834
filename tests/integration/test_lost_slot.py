"""The runbook for a lost slot, step by step as the guide writes it: the gap is found by id and closed."""

from __future__ import annotations

import psycopg
import pytest

from fix_provision import Pipeline
from outbox_pipeline import outbox
from outbox_pipeline.operations import audit
from waiting import PATIENCE_SECONDS, until

pytestmark = [pytest.mark.stack, pytest.mark.slow]


def test_the_gap_of_a_lost_slot_is_found_by_id_and_closed(own_pipeline: Pipeline) -> None:
    pipeline = own_pipeline
    assert pipeline.run("apply", "--no-wait").code == 0

    def send(count: int) -> list[str]:
        with psycopg.connect(pipeline.site.database.conninfo) as conn:
            events = [
                outbox.event(aggregate_type="order", aggregate_id="42", event_type="OrderPlaced", payload={})
                for _ in range(count)
            ]
            outbox.add_many(conn, events)
        return [str(event.id) for event in events]

    send(2)
    with pipeline.site.admin() as conn:
        assert audit.audit(conn, pipeline.site.definition, settle_seconds=PATIENCE_SECONDS).missing == 0
    assert pipeline.run("connectors", "stop").code == 0
    gap = send(2)
    until(
        lambda: pipeline.sql(
            "SELECT slot_name FROM pg_replication_slots WHERE NOT active AND slot_name = {slot}"
        )
    )
    pipeline.sql("SELECT pg_drop_replication_slot({slot})")
    gap += send(1)

    made = pipeline.run("apply", "--no-wait")
    assert "slot" in made.err
    assert pipeline.run("connectors", "resume").code == 7, "the old offset belongs to the slot that is gone"
    assert pipeline.run("connectors", "offsets", "reset", "--yes").code == 0
    assert pipeline.run("connectors", "resume").code == 0

    send(1)

    def only_the_gap() -> bool:
        found = pipeline.run("--json", "audit", "--settle", "1")
        return found.code == 5 and set(found.document()["missing"]) == set(gap)

    until(only_the_gap, "what was written since has arrived")
    ids = [word for event_id in gap for word in ("--id", event_id)]
    assert pipeline.run("replay", *ids, "--reason", "lost slot").code == 0
    closed = pipeline.run("--json", "audit")
    assert closed.code == 0
    assert closed.document()["missing"] == []
    assert closed.document()["written"] == 6
    assert pipeline.run("plan").code == 0
