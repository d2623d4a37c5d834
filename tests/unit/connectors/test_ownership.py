"""Who made a connector, and which of them a message of ours would stop."""

from __future__ import annotations

import pytest

from outbox_connectors.ownership import captures, foreign_properties, why_foreign, why_no_message
from outbox_connectors.profile import Version, render
from unit.connectors.definitions import definition

DEFINITION = definition()
OURS = render(DEFINITION, debezium=Version(3, 7), postgres_major=18)
TICK = DEFINITION.heartbeat_prefix


def test_what_apply_registers_is_ours_and_takes_ticks() -> None:
    for form in (DEFINITION, definition("outbox: {payload: bytea}\n")):
        for debezium in (Version(3, 6), Version(3, 7, 1)):
            live = render(form, debezium=debezium, postgres_major=14)
            assert foreign_properties(form, live) == ()
            assert why_foreign(form, live) == ""
            assert why_no_message(form, live, TICK, True) == ""


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("message.prefix.include.list", "", "captures the messages of everybody"),
        ("message.prefix.include.list", ".*", "not the definition's prefixes alone"),
        ("message.prefix.include.list", r"shop\.canary", "does not capture messages with the prefix"),
        ("message.prefix.include.list", "${file:/x:prefixes}", "is a reference"),
        ("message.prefix.exclude.list", "audit", "everybody but audit"),
        ("topic.prefix", "theirs", "topic.prefix of connector"),
        ("slot.name", "theirs", "slot.name of connector"),
        ("database.dbname", "theirs", "database.dbname of connector"),
        ("transforms.outbox.predicate", "", "has no predicate"),
        (
            "value.converter",
            "org.apache.kafka.connect.converters.ByteArrayConverter",
            "cannot write a message",
        ),
        ("value.converter", "io.debezium.converters.BinaryDataConverter", "cannot write a message"),
    ],
)
def test_a_connector_that_a_tick_could_stop_gets_none(key: str, value: str, why: str) -> None:
    assert why in why_no_message(DEFINITION, {**OURS, key: value}, TICK, True)


def test_a_topic_that_is_missing_or_unseen_takes_no_tick() -> None:
    assert "wait for it for ever" in why_no_message(DEFINITION, OURS, TICK, False)
    assert "cannot be seen" in why_no_message(DEFINITION, OURS, TICK, None)
    assert "there is no connector" in why_no_message(DEFINITION, None, TICK, True)


def test_a_foreign_connector_is_named_by_what_differs() -> None:
    live = {**OURS, "slot.name": "debezium", "topic.prefix": "theirs"}
    assert foreign_properties(DEFINITION, live) == ("topic.prefix", "slot.name")
    assert "its topic.prefix is theirs" in why_foreign(DEFINITION, live)


@pytest.mark.parametrize(
    ("included", "captured"),
    [("", True), ("other", False), (r"shop\.heartbeat", True), ("${file:/x:y}", True), ("(", True)],
)
def test_a_message_is_harmless_only_where_it_is_known_not_to_be_captured(
    included: str, captured: bool
) -> None:
    assert captures({"message.prefix.include.list": included}, TICK) is captured
