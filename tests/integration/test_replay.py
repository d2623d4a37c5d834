"""`outboxctl replay` publishes retained events again, the same records, and says why in its log."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from uuid import UUID

import pytest

from conformance.roads import _arrived
from fix_relay import NewRelayed, Relayed
from outbox_connectors.errors import UsageError
from outbox_pipeline.operations import replay
from outbox_pipeline.operations.replay import Selection
from outbox_pipeline.relay import Mode

pytestmark = pytest.mark.stack


def again(relayed: Relayed, selection: Selection, reason: str) -> int:
    with relayed.site.admin() as conn:
        return replay.replay(conn, relayed.definition, selection, reason)


def test_replay_of_ids_an_aggregate_and_a_time(new_relayed: NewRelayed) -> None:
    relayed = new_relayed(archive=True)
    relayed.write(100, keys=10)
    relayed.carry(Mode.ARCHIVE)
    some = [event_id for event_id, (aggregate, _) in relayed.written.items() if aggregate == "order k3"]
    assert len(some) == 10
    with pytest.raises(UsageError, match="which events"):
        again(relayed, Selection(), "none")
    with pytest.raises(UsageError, match="needs a reason"):
        again(relayed, Selection(aggregate_type="order"), " ")
    done = relayed.outboxctl("--json", "replay", "--aggregate", "order", "k3", "--reason", "x", "--dry-run")
    assert json.loads(done.stdout)["events"] == 10
    done = relayed.outboxctl("replay", "--id", some[0], "--id", some[1], "--reason", "billing lost two")
    assert "2 events published again" in done.stdout, done.stderr
    k3 = Selection(aggregate_type="order", aggregate_id="k3")
    assert again(relayed, k3, "all of k3") == 10
    assert again(relayed, Selection(since=datetime(2999, 1, 1, tzinfo=UTC)), "nothing") == 0
    assert again(relayed, Selection(ids=[UUID(int=7)]), "unknown") == 0
    arrived = [_arrived(message) for message in relayed.read()]
    by_id: dict[bytes | None, set[object]] = {}
    for one in arrived:
        by_id.setdefault(one.record.headers[0][1], set()).add((one.record, one.partition))
    assert all(len(records) == 1 for records in by_id.values())  # the same bytes, the same partition
    times = Counter(one.record.headers[0][1] for one in arrived)
    assert times[some[0].encode()] == 3
    assert times[some[5].encode()] == 2
    with relayed.connect() as conn:
        log = conn.execute("SELECT reason, selection, events FROM outbox_replay ORDER BY id").fetchall()
    assert [(reason, events) for reason, _, events in log] == [
        ("billing lost two", 2),
        ("all of k3", 10),
        ("nothing", 0),
        ("unknown", 0),
    ]
    assert "aggregate order k3" in log[1][1]
