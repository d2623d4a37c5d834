"""Whose process holds a slot."""

from __future__ import annotations

import pytest

from outbox_pipeline.servers.slot_holder import Process, Whose, whose

LIVE = {"database.user": "their_cdc"}


def process(user: str | None = "their_cdc", application: str | None = "Debezium Streaming") -> Process:
    return Process(100, user, application, "10.0.0.7")


@pytest.mark.parametrize(
    ("found", "config", "expected"),
    [
        (process(), LIVE, Whose.CONNECTOR),  # whatever login a definition has
        (process("another"), LIVE, Whose.OTHER),
        (process(application="psql"), LIVE, Whose.UNKNOWN),
        (process("postgres", "psql"), LIVE, Whose.OTHER),
        (process(application="my-app"), {**LIVE, "driver.ApplicationName": "my-app"}, Whose.CONNECTOR),
        (process("x"), {"database.user": "${file:/s:user}"}, Whose.UNKNOWN),
        (process("postgres", "psql"), {"database.user": "${file:/s:user}"}, Whose.UNKNOWN),
        (process("x", "psql"), None, Whose.UNKNOWN),
        (process("shop_cdc"), None, Whose.CONNECTOR),
        (process("x"), None, Whose.UNKNOWN),
        (process(application=""), LIVE, Whose.CONNECTOR),
    ],
)
def test_the_live_login_decides(found: Process, config: dict[str, str] | None, expected: Whose) -> None:
    assert whose(found, config, expected_user="shop_cdc") is expected


@pytest.mark.parametrize(
    ("worker", "running", "expected"),
    [
        ("10.0.0.8:8083", False, Whose.UNKNOWN),
        ("10.0.0.8:8083", True, Whose.CONNECTOR),
        ("10.0.0.7:8083", False, Whose.CONNECTOR),
        ("connect:8083", False, Whose.CONNECTOR),
        ("127.0.0.1:8083", False, Whose.CONNECTOR),
    ],
)
def test_an_address_counts_only_where_the_task_does_not_run(
    worker: str, running: bool, expected: Whose
) -> None:
    assert whose(process(), LIVE, worker=worker, running=running) is expected
