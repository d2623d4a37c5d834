"""Connector files, the difference of two configurations, and what a state means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outbox_pipeline.connect.client import ConnectorStatus, TaskStatus
from outbox_pipeline.connect.configuration import Difference, differences, literal_secrets, read_file
from outbox_pipeline.connect.registration import explain
from outbox_pipeline.errors import UsageError


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
