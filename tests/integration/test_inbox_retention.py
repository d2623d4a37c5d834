"""The inbox forgets day by day, never before its topics, and says what it no longer knows."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from uuid_utils.compat import uuid7

from asking import administrator
from fix_consumer import Bench, running
from outbox_consumers import claim
from outbox_consumers.failures import dead_letter
from outbox_consumers.inbox import retention, schema
from outbox_consumers.inbox.retention import first_id
from outbox_pipeline.cli import main
from waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


def id_of(moment: datetime) -> UUID:
    """Make an id like a UUIDv7 of that moment."""
    return UUID(int=first_id(moment).int | 7 << 76 | 2 << 62 | uuid4().int >> 80)


def outboxctl(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    captured = capsys.readouterr()
    assert caught.value.code == code, captured.err
    return captured.out if code == 0 else captured.err


@pytest.fixture
def app_module(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"app_{bench.topic}"
    (tmp_path / f"{name}.py").write_text(
        "from outbox_consumers import Consumer\n"
        f'app = Consumer("billing", kafka={{"bootstrap.servers": "{bench.server.kafka}"}},'
        f' topics=["{bench.topic}"], dsn="{bench.dsn}")\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return f"{name}:app"


def set_retention(bench: Bench, milliseconds: int) -> None:
    admin = administrator({"bootstrap.servers": bench.server.kafka})
    entry = ConfigEntry("retention.ms", str(milliseconds), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, bench.topic, incremental_configs=[entry])
    next(iter(admin.incremental_alter_configs([resource]).values())).result(PATIENCE_SECONDS)


def test_ids_fall_into_the_partition_of_their_day_and_stay_unique(bench: Bench) -> None:
    today, random = uuid7(), uuid4()
    with psycopg.connect(bench.dsn) as conn:
        claim(conn, "billing", [today, random])
    where = dict(bench.query("SELECT event_id, tableoid::regclass::text FROM inbox"))
    assert where[today] == f"inbox_p{datetime.now(UTC):%Y%m%d}"
    with psycopg.connect(bench.dsn) as conn:
        assert claim(conn, "billing", [today, random]) == set()


def test_maintenance_creates_future_days_and_drops_those_that_no_topic_can_deliver(
    bench: Bench, app_module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    set_retention(bench, 5 * 86_400_000)
    with bench.database.connect() as conn:
        for days in (9, 4):
            conn.execute(retention.create_day("inbox", (NOW - days * DAY).date()))
        with conn.transaction():
            claim(conn, "billing", [id_of(NOW - 9 * DAY), id_of(NOW - 4 * DAY), id_of(NOW), uuid4()])
        conn.execute("UPDATE inbox_default SET received_at = now() - interval '9 days'")
        conn.execute(f"DROP TABLE inbox_p{NOW + 7 * DAY:%Y%m%d}".encode())
    dry = json.loads(outboxctl(capsys, "inbox", "maintain", app_module, "--dry-run", "--json"))
    done = json.loads(outboxctl(capsys, "inbox", "maintain", app_module, "--json"))
    assert dry["dropped"] == done["dropped"] == [f"inbox_p{NOW - 9 * DAY:%Y%m%d}"]
    assert done["created"] == [(NOW + 7 * DAY).date().isoformat()]
    assert (done["pruned"], done["window_seconds"]) == (1, 6 * 86_400)
    assert bench.query("SELECT count(*) FROM inbox") == [(2,)]
    assert bench.query("SELECT action FROM inbox_journal") == [("dropped",)]
    again = json.loads(outboxctl(capsys, "inbox", "maintain", app_module, "--json"))
    assert (again["dropped"], again["created"], again["pruned"]) == ([], [], 0)


def test_a_window_shorter_than_the_topic_s_retention_is_refused(
    bench: Bench, app_module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    set_retention(bench, 5 * 86_400_000)
    refused = outboxctl(capsys, "inbox", "maintain", app_module, "--keep", "3 days", code=7)
    assert "is shorter than topic" in refused
    set_retention(bench, -1)
    assert "for ever" in outboxctl(capsys, "inbox", "maintain", app_module, "--keep", "3 days", code=7)
    assert json.loads(outboxctl(capsys, "inbox", "maintain", app_module, "--json"))["window_seconds"] is None


@pytest.mark.parametrize("stale", ["dead_letter", "process", "skip"])
def test_events_from_before_the_window_go_where_the_consumer_wants_them(bench: Bench, stale: Any) -> None:
    with bench.database.connect() as conn:
        conn.execute(retention.create_day("inbox", (NOW - 20 * DAY).date()))
        retention.maintain(conn, "inbox", retention.plan(retention.partitions(conn, "inbox"), NOW, 10 * DAY))
    old = bench.send({"n": 1}, id=id_of(NOW - 30 * DAY))
    bench.send({"n": 2}, id=uuid4())
    bench.send({"n": 3})
    bench.flush()
    with running(bench.applying(stale=stale)) as app:
        until(lambda: sum((app.counters.processed, app.counters.dead_letters, app.counters.skipped)) == 3)
    assert sorted(bench.effects()) == ([1, 2, 3] if stale == "process" else [2, 3])
    with bench.database.connect() as conn:
        letters = dead_letter.find(conn, dead_letter.DeadLetterFilter(), "inbox")
    assert [letter["event_id"] for letter in letters] == ([old] if stale == "dead_letter" else [])


def test_forgetting_on_purpose_lets_events_be_handled_again_and_keeps_the_reason(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    event_id = bench.send({"n": 1})
    bench.flush()
    app = bench.applying()
    with running(app):
        until(lambda: app.counters.processed == 1)
        base = ["inbox", "forget", "--dsn", bench.dsn, "--consumer", "billing", "--reason", "wrong rate"]
        assert "say which events" in outboxctl(capsys, *base, code=2)
        assert "1 events would be forgotten" in outboxctl(capsys, *base, "--id", str(event_id), "--dry-run")
        assert "1 events forgotten" in outboxctl(capsys, *base, "--since", f"{NOW - DAY:%Y-%m-%d}", "--yes")
        bench.send({"n": 1}, id=event_id)
        bench.flush()
        until(lambda: app.counters.processed == 2)
    assert bench.effects() == [1, 1]
    assert "wrong rate" in bench.query("SELECT detail FROM inbox_journal")[0][0]


def test_status_shows_consumers_partitions_and_window(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    with psycopg.connect(bench.dsn) as conn:
        claim(conn, "billing", [uuid7(), uuid7()])
    found = json.loads(outboxctl(capsys, "inbox", "status", "--dsn", bench.dsn, "--json"))
    assert [(c["consumer"], c["events"]) for c in found["consumers"]] == [("billing", 2)]
    assert len(found["partitions"]) == 10
    assert found["forgotten_before"] is None
    text = outboxctl(capsys, "inbox", "status", "--dsn", bench.dsn)
    assert "other ids" in text
    assert "forgotten: nothing yet" in text


def test_an_inbox_of_the_earlier_layout_is_recognised(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.run(
        'DROP TABLE inbox; CREATE TABLE inbox (event_id uuid, consumer text COLLATE "C",'
        " received_at timestamptz DEFAULT now(), PRIMARY KEY (event_id, consumer))"
    )
    bench.send_many(5)
    with running(bench.applying()) as app:  # it still works, it only cannot forget
        until(lambda: app.counters.processed == 5)
    refused = outboxctl(capsys, "inbox", "init", "--dsn", bench.dsn, code=1)
    assert '"inbox" is not partitioned; rename that table' in refused


def test_maintenance_gives_way_to_a_busy_inbox(bench: Bench) -> None:
    todo = retention.RetentionPlan(((NOW + 30 * DAY).date(),), (), datetime.min.replace(tzinfo=UTC))
    with psycopg.connect(bench.dsn) as busy, bench.database.connect() as conn:
        claim(busy, "billing", [uuid7()])
        with pytest.raises(psycopg.errors.LockNotAvailable):
            retention.maintain(conn, "inbox", todo, lock_seconds=0.2)
        busy.commit()
        retention.maintain(conn, "inbox", todo)
        assert schema.missing(conn) == ()
