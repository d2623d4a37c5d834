"""`outboxctl prune` removes what is old and proven, and nothing else."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fix_relay import NewRelayed, Relayed
from outbox_connectors.errors import ExitCode

pytestmark = pytest.mark.stack


def delivered_by_a_connector(relayed: Relayed, count: int) -> None:
    """Leave an outbox as a connector would: rows that are in the topics and still in the table."""
    relayed.write(count)
    with relayed.connect() as conn:
        conn.execute("CREATE TABLE kept AS SELECT * FROM outbox")
        relayed.until_empty()
        conn.execute("INSERT INTO outbox OVERRIDING SYSTEM VALUE SELECT * FROM kept")
        conn.execute("DROP TABLE outbox_relay, outbox_relay_batch, outbox_dead_letter")


def age(relayed: Relayed, days: int, limit: int) -> None:
    with relayed.connect() as conn:
        conn.execute(
            "UPDATE outbox SET occurred_at = occurred_at - make_interval(days => %s)"
            " WHERE position IN (SELECT position FROM outbox ORDER BY position LIMIT %s)",
            (days, limit),
        )


def prune(relayed: Relayed, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = relayed.outboxctl("--json", "prune", *arguments)
    assert "Traceback" not in done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document


def test_old_rows_leave_and_young_ones_stay(relayed: Relayed) -> None:
    delivered_by_a_connector(relayed, 300)
    assert prune(relayed)[1]["rows"] == 0
    age(relayed, 8, 200)
    assert prune(relayed, "--dry-run")[1]["rows"] == 200
    assert relayed.left() == 300
    assert prune(relayed)[1]["rows"] == 200
    assert relayed.left() == 100


def test_what_no_topic_has_stays(relayed: Relayed) -> None:
    delivered_by_a_connector(relayed, 100)
    relayed.write(10)
    age(relayed, 8, 110)
    code, done = prune(relayed)
    assert code == ExitCode.OK
    assert (done["rows"], done["unproven"]) == (100, 10)
    assert relayed.left() == 10
    code, done = prune(relayed)
    assert code == ExitCode.REFUSED
    assert "no topic has them" in done["error"]["problem"]


def test_days_are_dropped(new_relayed: NewRelayed) -> None:
    relayed = new_relayed(outbox={"partition": "daily"})
    day = datetime.now(UTC).date() - timedelta(days=9)
    with relayed.connect() as conn:
        conn.execute(
            f"CREATE TABLE outbox_{day:%Y%m%d} PARTITION OF outbox"
            f" FOR VALUES FROM ('{day} 00:00+00') TO ('{day + timedelta(days=1)} 00:00+00')"
        )
    delivered_by_a_connector(relayed, 100)
    age(relayed, 9, 60)
    code, done = prune(relayed)
    assert code == ExitCode.OK
    assert done["partitions"] == [f"outbox_{day:%Y%m%d}"]
    assert (done["rows"], relayed.left()) == (60, 40)
    assert done["freed_bytes"] > 0


def test_an_old_snapshot_is_waited_for(relayed: Relayed, monkeypatch: pytest.MonkeyPatch) -> None:
    from outbox_pipeline import prune as library
    from outbox_pipeline.errors import Refused

    delivered_by_a_connector(relayed, 50)
    age(relayed, 8, 50)
    monkeypatch.setattr(library, "OLD_SNAPSHOT_SECONDS", 0.0)
    with relayed.connect() as reader, relayed.site.admin() as conn:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM outbox")
        with pytest.raises(Refused, match="has had a snapshot"):
            library.prune(conn, relayed.definition, datetime.now(UTC))
        reader.execute("COMMIT")
    assert relayed.left() == 50


def test_a_history_is_pruned_by_its_own_age(new_relayed: NewRelayed) -> None:
    relayed = new_relayed(archive=True)
    relayed.write(100)
    relayed.until_empty("--mode", "archive")
    relayed.write(5)
    age(relayed, 30, 5)  # old and not delivered
    with relayed.connect() as conn:
        conn.execute(
            "UPDATE outbox_history SET relayed_at = relayed_at - interval '8 days' WHERE position <= 40"
        )
    assert prune(relayed)[1]["rows"] == 40
    assert relayed.left() == 5
