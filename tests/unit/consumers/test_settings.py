"""Kafka properties: completed, or refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from outbox_consumers.errors import RefusedSetting, UsageError
from outbox_consumers.loop.kafka_settings import checked, poll_budget, quiet

BROKER = {"bootstrap.servers": "h:1"}


def complete(start: Any = "earliest", **given: Any) -> dict[str, Any]:
    properties = {name.replace("_", "."): value for name, value in given.items()}
    return checked(BROKER | properties, name="billing", batch_size=100, start=start)


def test_defaults() -> None:
    settings = complete()
    assert settings["group.id"] == "billing"
    assert settings["enable.auto.commit"] == "true"
    assert settings["enable.auto.offset.store"] == "false"
    assert settings["auto.offset.reset"] == "earliest"
    assert settings["isolation.level"] == "read_committed"
    assert settings["partition.assignment.strategy"] == "cooperative-sticky"
    # A queue of this size stalls without the short back-off.
    assert (settings["queued.min.messages"], settings["fetch.queue.backoff.ms"]) == (1000, 10)


def test_the_caller_overrides_the_defaults() -> None:
    settings = complete(group_id="g", fetch_wait_max_ms=5, auto_offset_reset="error", enable_auto_commit=True)
    assert (settings["group.id"], settings["fetch.wait.max.ms"]) == ("g", 5)
    assert settings["auto.offset.reset"] == "error"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"enable.auto.commit": False}, "flushes them when partitions are revoked"),
        ({"enable.auto.offset.store": "true"}, "a crash would lose those"),
        ({"isolation.level": "read_uncommitted"}, "aborted transactions"),
        ({"auto.offset.reset": "latest"}, 'pass Consumer(..., start="latest")'),
        ({"auto.commit.interval.ms": 0}, "switches the commits off"),
        ({"default.topic.config": {"auto.offset.reset": "latest"}}, "properties inside it are not checked"),
        ({"group.protocol": "consumer", "session.timeout.ms": 6000}, "the broker sets it"),
        ({"group.protocol": "consumer", "partition.assignment.strategy": "range"}, "the broker sets it"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_refused_with_the_reason(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(RefusedSetting) as caught:
        checked(BROKER | given, name="billing", batch_size=100, start="earliest")
    assert reason in str(caught.value)
    assert str(caught.value).startswith("Consumer('billing'): ")


def test_latest_is_allowed_as_an_argument() -> None:
    assert complete(start="latest")["auto.offset.reset"] == "latest"


def test_the_consumer_protocol_gets_no_classic_property() -> None:
    assert "partition.assignment.strategy" not in complete(group_protocol="consumer")


def test_no_brokers() -> None:
    with pytest.raises(UsageError, match=r"bootstrap\.servers"):
        checked({}, name="billing", batch_size=1, start="earliest")


def test_callbacks_never_raise_into_the_client(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("mine")

    settings = checked(BROKER | {"stats_cb": broken}, name="billing", batch_size=1, start="earliest")
    settings["stats_cb"]("{}")
    quiet("error_cb", broken)("x")
    assert "stats_cb raised" in caplog.text


def test_the_budget_is_a_third_of_the_poll_interval() -> None:
    assert poll_budget({}) == 100
    assert poll_budget({"max.poll.interval.ms": "6000"}) == 2
