"""Connector files, the difference of two configurations, and what a state means."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from outbox_connectors.findings import Finding, Severity
from outbox_pipeline.connect.client import ConnectorStatus, TaskStatus
from outbox_pipeline.connect.configuration import Difference, differences, literal_secrets, read_file
from outbox_pipeline.connect.registration import explain, keep_copy, reasons_to_keep
from outbox_pipeline.errors import Failed, UsageError


def test_differences_are_field_by_field_with_secrets_hidden() -> None:
    have = {"name": "shop", "a": "1", "b": "2", "database.password": "old", "gone": "x"}
    want = {"a": "1", "b": "3", "database.password": "${env:PW}", "new": "y"}
    assert differences(have, want) == (
        Difference("b", "2", "3"),
        Difference("database.password", "***", "${env:PW}"),
        Difference("gone", "x", None),
        Difference("new", None, "y"),
    )
    assert differences(have, have) == ()


def test_literal_secrets_are_found() -> None:
    config = {"database.password": "x", "database.sslpassword": "${env:P}", "topic.prefix": "shop"}
    assert literal_secrets(config) == ("database.password",)


def test_values_become_the_text_that_connect_stores(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    document = {"name": "shop", "config": {"connector.class": "c", "n": 1, "f": True, "name": "shop"}}
    file.write_text(json.dumps(document))
    assert read_file(file, None) == ("shop", {"connector.class": "c", "n": "1", "f": "true"})
    assert read_file(file, "other")[0] == "other"


def test_broken_json_is_found_by_line(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text('{\n"name": "x"\n"config": {}}')
    with pytest.raises(UsageError) as caught:
        read_file(file, None)
    assert caught.value.where == f"{file}:3"


def status(state: str, *tasks: str, trace: str = "") -> ConnectorStatus:
    found = tuple(TaskStatus(number, task, "w", trace) for number, task in enumerate(tasks))
    return ConnectorStatus("shop", state, "w", found)


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (status("RUNNING", "RUNNING"), ""),
        (status("RUNNING"), "a slot that is lost"),
        (status("STOPPED"), "keeps WAL"),
        (status("PAUSED", "PAUSED"), "delivers nothing"),
        (status("RUNNING", "UNASSIGNED"), "task 0 is UNASSIGNED"),
        (status("RUNNING", "FAILED", trace="a.B: why"), "B: why"),
        (status("FAILED"), "failed without a trace"),
    ],
)
def test_a_state_is_explained(seen: ConnectorStatus, text: str) -> None:
    assert (text in explain(seen)) if text else explain(seen) == ""


SOURCE = {"slot.name": "s", "topic.prefix": "p", "poll.interval.ms": "10"}
TRAP = Finding("x", Severity.CRITICAL, "the trap", "mend it", "here")
HINT = Finding("x", Severity.WARNING, "the hint", "mend it", "here")


@pytest.mark.parametrize(
    ("wanted", "findings", "blocked", "reasons"),
    [
        ({**SOURCE, "poll.interval.ms": "20"}, [HINT], [], ()),
        (SOURCE, [TRAP], [], ("the trap",)),
        (SOURCE, [], ["table t: is odd"], ("plan: table t: is odd",)),
        ({**SOURCE, "slot.name": "t"}, [], [], ("it was not made from this configuration (slot.name)",)),
    ],
)
def test_what_speaks_against_a_new_configuration(
    wanted: dict[str, str], findings: list[Finding], blocked: list[str], reasons: tuple[str, ...]
) -> None:
    assert reasons_to_keep(SOURCE, wanted, findings, None, blocked) == reasons


def test_a_configuration_is_kept_for_its_owner_alone_and_never_overwrites(tmp_path: Path) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    kept = keep_copy(tmp_path, "a/../b", {**SOURCE, "name": "a/../b"}, moment)
    assert kept.parent == tmp_path
    assert kept.stat().st_mode & 0o777 == 0o600
    assert json.loads(kept.read_text()) == {"name": "a/../b", "config": SOURCE}
    with pytest.raises(Failed, match="nothing was changed"):
        keep_copy(tmp_path, "a/../b", SOURCE, moment)
