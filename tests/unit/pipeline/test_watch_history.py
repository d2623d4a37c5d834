"""What the watch remembers: bounded, and cut where the past is not comparable."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from outbox_pipeline.watch.facts import facts_of, rate
from outbox_pipeline.watch.history import (
    BUCKETS,
    POINTS,
    History,
    comparable,
    file_of,
    load,
    point_of,
    remember,
    save,
)
from outbox_pipeline.watch.sample import Sample
from outbox_pipeline.watch.thresholds import Thresholds
from outbox_pipeline.watch.verdict import Unseen
from watch_samples import (
    HEALTHY,
    MIB,
    WAL,
    history_of,
    later,
    verdict,
    with_outbox,
    with_server,
    with_slot,
)


def notes(before: Sample, after: Sample) -> str:
    _, found = comparable([point_of(before)], point_of(after))
    return "; ".join(found)


def test_ten_thousand_samples_stay_small_and_cover_a_day() -> None:
    history = History()
    for number in range(10_000):
        history = remember(history, later(HEALTHY, number * 15, wal=number * MIB))
    assert len(history.points) <= POINTS
    assert len(history.buckets) <= BUCKETS + 1
    assert sys.getsizeof(history.points) < 10_000
    newest = history.points[-1].at
    assert newest - history.points[0].at >= 900  # enough to see a group or slot stand still for long
    assert sum(bucket.seconds for bucket in history.buckets) == pytest.approx(86_400, rel=0.01)


def test_wal_is_poured_into_the_five_minutes_it_was_written_in() -> None:
    history = history_of([HEALTHY, later(HEALTHY, 600, wal=600)])
    assert sum(bucket.bytes for bucket in history.buckets) == pytest.approx(600)
    assert all(bucket.bytes == pytest.approx(bucket.seconds) for bucket in history.buckets)


def test_a_watch_that_looks_once_an_hour_has_something_to_compare_with() -> None:
    history = history_of([HEALTHY, later(HEALTHY, 3600), later(HEALTHY, 7200)])
    assert len(history.points) == 2


def test_the_file_brings_everything_back(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "shop.json"
    history = history_of(later(HEALTHY, n * 30, wal=n * MIB) for n in range(200))
    save(file, history)
    again = load(file)
    assert again.points == history.points
    assert [b.number for b in again.buckets] == [b.number for b in history.buckets]
    assert file.stat().st_size < 150_000
    assert [path.name for path in file.parent.iterdir()] == ["shop.json"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 99}', '{"format": 1, "points": [{"x": 1}]}', "null"]
)
def test_a_file_of_another_kind_is_no_history(tmp_path: Path, content: str) -> None:
    file = tmp_path / "shop.json"
    file.write_text(content)
    assert load(file) == History()
    assert load(tmp_path / "absent.json") == History()


def test_the_file_differs_by_pipeline_and_definition() -> None:
    environ = {"XDG_STATE_HOME": "/state"}
    one = file_of(environ, "shop", "a/outbox.yaml")
    assert one.parent == Path("/state/outboxctl")
    assert one != file_of(environ, "shop", "b/outbox.yaml")
    assert file_of({"HOME": "/home/me"}, "shop", "x").is_relative_to("/home/me/.local/state")


def test_a_failover_is_named_and_never_a_negative_rate() -> None:
    after = with_server(later(HEALTHY, 5), timeline=2, wal_position=WAL - MIB)
    assert "timeline" in notes(HEALTHY, after)
    facts = facts_of(history_of([HEALTHY, after]), after, Thresholds())
    assert (facts.wal_rate, len(facts.points)) == (None, 1)


def test_another_server_is_named() -> None:
    assert "another server" in notes(HEALTHY, with_server(later(HEALTHY, 5), system_identifier="1"))


def test_a_restored_server_is_named() -> None:
    assert "backwards" in notes(HEALTHY, with_server(later(HEALTHY, 5), wal_position=WAL - MIB))


def test_a_slot_made_anew_is_named() -> None:
    assert "made anew" in notes(HEALTHY, with_slot(later(HEALTHY, 5), confirmed_lsn=WAL - 9 * MIB))


def test_reset_statistics_are_named_and_never_a_negative_rate() -> None:
    after = with_outbox(later(HEALTHY, 5), inserted=3)
    assert "statistics were reset" in notes(HEALTHY, after)
    assert facts_of(history_of([HEALTHY, after]), after, Thresholds()).insert_rate is None


def test_a_restart_is_named_and_keeps_the_past() -> None:
    after = with_server(later(HEALTHY, 60), started_at=HEALTHY.at + 30)
    points, found = comparable([point_of(HEALTHY)], point_of(after))
    assert "restarted" in found[0]
    assert len(points) == 2


def test_a_gap_in_which_postgres_was_not_seen_does_not_cut() -> None:
    gone = replace(later(HEALTHY, 5), postgres=Unseen("postgres", "refused"))
    back = later(HEALTHY, 10, wal=10)
    facts = facts_of(history_of([HEALTHY, gone, back]), back, Thresholds())
    assert len(facts.points) == 3
    assert facts.wal_rate == pytest.approx(1)


def test_a_clock_set_back_is_survived() -> None:
    answer = verdict(later(HEALTHY, 100), HEALTHY)
    assert answer.key.value == "healthy"


def test_rates_need_two_points_and_use_the_last_half_minute() -> None:
    points = [point_of(later(HEALTHY, s, wal=w)) for s, w in ((0, 0), (60, 600), (80, 620), (90, 630))]
    assert rate(points[:1], lambda p: p.wal) is None
    assert rate(points, lambda p: p.wal) == pytest.approx(1)
    assert rate(points[:2], lambda p: p.wal) == pytest.approx(10)
