"""What Prometheus gets: valid, complete from the first sample on, and what rules and dashboard use."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from outbox_connectors import loading
from outbox_pipeline.watch import alerting
from outbox_pipeline.watch.assess import verdict_of
from outbox_pipeline.watch.facts import facts_of
from outbox_pipeline.watch.metrics import WatchCounts, exposition
from outbox_pipeline.watch.one_shot import Assessment
from outbox_pipeline.watch.sample import Sample
from outbox_pipeline.watch.thresholds import Thresholds
from outbox_pipeline.watch.verdict import Unseen, VerdictKey
from watch_samples import HEALTHY, MIB, history_of, later, with_postgres, with_server, with_slot

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "pipeline" / "observability"
DEFINITION = loading.load(ROOT / "connectors" / "outbox.yaml", {})
FILES = (alerting.OWN, alerting.POSTGRES_EXPORTER)
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="install Debian's package prometheus for promtool"
)


def answer_of(*samples: Sample) -> Assessment:
    *past, present = samples
    facts = facts_of(history_of([*past, present]), present, Thresholds())
    return Assessment(facts, verdict_of(facts))


def seen() -> Assessment:
    sample = replace(HEALTHY, disk_free_bytes=10**12, canary_seconds=0.025)
    return answer_of(*(later(sample, second, wal=second * MIB) for second in range(0, 60, 10)))


def series(answer: Assessment | None) -> dict[str, float]:
    lines = exposition(answer, WatchCounts(samples=3)).decode().splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")
    }


def names(answer: Assessment | None) -> set[str]:
    return {name.partition("{")[0] for name in series(answer)}


def rules(file: str) -> dict[str, str]:
    """Each alert of a file with its expression."""
    text = (FOLDER / file).read_text()
    return dict(re.findall(r"- alert: (\w+)\n\s+expr: (.*)\n", text))


def test_one_verdict_at_a_time() -> None:
    found = series(seen())
    verdicts = {name: value for name, value in found.items() if name.startswith("outbox_verdict{")}
    assert len(verdicts) == len(VerdictKey)
    assert sum(verdicts.values()) == 1
    assert found['outbox_verdict{key="catching_up",pipeline="shop"}'] == 1


def test_what_alerts_use_is_there_even_when_the_slot_is_gone_or_lost() -> None:
    used = {
        name for expr in rules(alerting.OWN).values() for name in re.findall(r"outbox_\w+(?=\{)", expr)
    } - {"outbox_commit_to_kafka_seconds"}  # not measured is not slow
    lost = with_slot(HEALTHY, active_pid=None, wal_status="lost", invalidation_reason="wal_removed")
    gone = with_postgres(HEALTHY, slots=(), senders=())
    blind = replace(HEALTHY, postgres=Unseen("postgres", "x"), kafka=Unseen("kafka", "x"))
    for sample in (lost, gone, blind):
        assert used <= names(answer_of(sample))


def test_bytes_that_mean_nothing_are_not_exported() -> None:
    lost = answer_of(
        with_slot(HEALTHY, wal_status="lost", invalidation_reason="idle_timeout", active_pid=None)
    )
    standby = answer_of(with_server(HEALTHY, in_recovery=True))
    for answer in (lost, standby):
        assert not names(answer) & {"outbox_slot_retained_bytes", "outbox_slot_safe_wal_bytes"}


def test_time_left_is_infinite_while_nothing_piles_up() -> None:
    assert series(answer_of(HEALTHY))['outbox_time_left_seconds{bound="earliest",pipeline="shop"}'] == float(
        "inf"
    )


def test_before_the_first_sample_there_is_something_to_scrape() -> None:
    assert "outbox_watch_samples_total" in names(None)


def test_a_scrape_is_quick() -> None:
    answer = seen()
    exposition(answer, WatchCounts())
    began = time.thread_time()  # another program's turn is no time of ours
    for _ in range(20):
        exposition(answer, WatchCounts())
    assert (time.thread_time() - began) / 20 < 0.05  # 10 ms on a quiet machine


def test_rules_and_dashboard_use_only_what_is_exported() -> None:
    text = (FOLDER / "dashboard.json").read_text() + (FOLDER / alerting.OWN).read_text()
    used = set(re.findall(r"outbox_[a-z_]+(?=[\[{,) ]|$)", text)) & {
        word for word in re.findall(r"\boutbox_[a-z_]+", text) if not word.startswith("outbox_not_")
    }
    assert used <= names(seen()), used - names(seen())
    assert len(used) > 12


def test_the_dashboard_answers_first_and_has_no_second_panel_of_an_id() -> None:
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    first, *others = dashboard["panels"]
    assert "outbox_verdict" in first["targets"][0]["expr"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(others) + 1
    kept = next(panel for panel in dashboard["panels"] if panel["title"].startswith("Headroom"))
    assert any("outbox_slot_cap_bytes" in target["expr"] for target in kept["targets"])
    assert dashboard["annotations"]["list"]


@pytest.mark.parametrize("file", FILES)
def test_the_shipped_rules_are_those_of_the_shipped_definition(file: str) -> None:
    assert (FOLDER / file).read_text() == alerting.rules(DEFINITION, file)


@pytest.mark.parametrize("file", FILES)
def test_every_rule_has_a_test_that_fires_keeps_quiet_and_vanishes_and_a_runbook(file: str) -> None:
    tests = (FOLDER / file.replace(".yml", "_test.yml")).read_text()
    readme = (ROOT / "pipeline" / "README.md").read_text()
    text = (FOLDER / file).read_text()
    for alert in rules(file):
        cases = [line for line in tests.splitlines() if f"- name: {alert} " in line]
        assert any("fires" in case for case in cases), alert
        assert any("keeps quiet" in case for case in cases), alert
    assert tests.count("vanish") >= len(rules(file)) - 2
    headings = {
        heading.strip().lower().replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", readme, re.MULTILINE)
    }
    assert set(re.findall(r"README\.md#(\S+)", text)) <= headings


def test_every_key_has_an_alert_or_is_fine() -> None:
    watched = {word for expr in rules(alerting.OWN).values() for word in re.findall(r"[a-z_]+", expr)}
    silent = {VerdictKey.HEALTHY, VerdictKey.IDLE, VerdictKey.CATCHING_UP}
    assert {key.value for key in VerdictKey} - watched == {key.value for key in silent}


@needs_promtool
@pytest.mark.parametrize("file", FILES)
def test_promtool_agrees_with_the_rules(file: str) -> None:
    for command in (["check", "rules", file], ["test", "rules", file.replace(".yml", "_test.yml")]):
        done = subprocess.run(
            [str(PROMTOOL), *command], cwd=FOLDER, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_agrees_with_the_metrics() -> None:
    done = subprocess.run(
        [str(PROMTOOL), "check", "metrics"],
        input=exposition(seen(), WatchCounts()),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
