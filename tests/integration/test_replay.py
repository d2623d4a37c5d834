"""`outboxctl replay` publishes retained events again, the same records, and says why in its log."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from conformance.roads import _arrived
from fix_relay import NewRelayed

pytestmark = pytest.mark.stack


def test_replay_of_ids_an_aggregate_and_a_time(new_relayed: NewRelayed) -> None:
    relayed = new_relayed(archive=True)
    relayed.write(100, keys=10)
    relayed.until_empty("--mode", "archive")
    some = [event_id for event_id, (aggregate, _) in relayed.written.items() if aggregate == "order k3"]
    assert len(some) == 10
    refused = relayed.outboxctl("replay", "--reason", "none")
    assert (refused.returncode, "which events" in refused.stderr) == (2, True)
    done = relayed.outboxctl("--json", "replay", "--aggregate", "order", "k3", "--reason", "x", "--dry-run")
    assert json.loads(done.stdout)["events"] == 10
    done = relayed.outboxctl("replay", "--id", some[0], "--id", some[1], "--reason", "billing lost two")
    assert done.returncode == 0, done.stderr
    done = relayed.outboxctl("replay", "--aggregate", "order", "k3", "--reason", "all of k3")
    assert "10 events published again" in done.stdout
    relayed.outboxctl("replay", "--since", "2999-01-01T00:00:00Z", "--reason", "nothing")
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
    ]
    assert "aggregate order k3" in log[1][1]
