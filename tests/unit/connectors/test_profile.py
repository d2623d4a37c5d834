"""The profile: three tiers, two heartbeat forms, two payloads, and the user's last word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from outbox_connectors.profile import (
    Version,
    known_losses,
    pattern,
    properties,
    protected_overrides,
    reasons,
    render,
)
from unit.connectors.definitions import definition

ROOT = Path(__file__).parents[3]
V36, V370, V371 = (Version.parse(text) for text in ("3.6.3.Final", "3.7.0.Final", "3.7.1.Final"))
OFF = "watch: {ticker: off}\n"


def rendered(extra: str = "", debezium: Version = V370, major: int = 18) -> dict[str, str]:
    return render(definition(extra), debezium=debezium, postgres_major=major)


def test_versions_are_ordered() -> None:
    texts = [
        "3.6",
        "3.6.3.Final",
        "3.7.0-SNAPSHOT",
        "3.7.0.Alpha2",
        "3.7.0.Beta1",
        "3.7.0.CR1",
        "3.7.0.Final",
    ]
    texts += ["3.7.1.Final", "3.10.0.Final"]
    versions = [Version.parse(text) for text in texts]
    assert versions == sorted(versions)
    assert Version.parse("3.7") == V370
    assert str(V370) == "3.7.0.Final"
    assert [str(Version.parse(text)) for text in texts[3:7]] == texts[3:7]


@pytest.mark.parametrize("text", ["", "x", "3", "v3.7"])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(ValueError):
        Version.parse(text)


def test_the_profile_is_well_formed() -> None:
    for prop in properties():
        assert prop.why.endswith("."), prop.key
        assert prop.form in ("", "ticker", "heartbeat")
        assert prop.payload in ("", "jsonb", "bytea")
        assert all(isinstance(getattr(prop, name), str) for name in ("value", "since", "until")), prop.key


@pytest.mark.parametrize("debezium", [V36, V370, V371], ids=str)
@pytest.mark.parametrize("payload", ["jsonb", "bytea"])
@pytest.mark.parametrize("ticker", ["10s", "off"])
def test_each_property_is_rendered_once(debezium: Version, payload: str, ticker: str) -> None:
    form = "heartbeat" if ticker == "off" else "ticker"
    keys = [prop.key for prop in properties() if prop.applies(form, payload, debezium)]
    assert len(keys) == len(set(keys))
    config = rendered(f"outbox: {{payload: {payload}}}\nwatch: {{ticker: {ticker}}}\n", debezium)
    assert not any(re.search(r"\{(?!env:|routedByValue)", value) for value in config.values())


def test_the_ticker_form_captures_ticks_and_canaries() -> None:
    config = rendered()
    assert config["heartbeat.interval.ms"] == "0"
    assert config["message.prefix.include.list"] == r"shop\.heartbeat,shop\.canary"
    assert "heartbeat.action.query" not in config


def test_the_heartbeat_form_captures_canaries_only() -> None:
    config = rendered(OFF)
    assert config["heartbeat.interval.ms"] == "10000"
    assert config["heartbeat.action.query"] == "SELECT pg_logical_emit_message(false, 'shop.heartbeat', '')"
    assert config["message.prefix.include.list"] == r"shop\.canary"
    assert config["topic.creation.messages.include"] == r"shop\.message,__debezium-heartbeat\.shop"


def test_heartbeats_are_more_frequent_on_36() -> None:
    assert rendered(OFF, V36)["heartbeat.interval.ms"] == "1000"
    assert rendered(OFF, V371)["heartbeat.interval.ms"] == "10000"


def test_losses_are_said() -> None:
    assert known_losses(definition(), debezium=V36) == ()
    (old,) = known_losses(definition(OFF), debezium=V36)
    (new,) = known_losses(definition(OFF), debezium=V371)
    assert "a crash less than a heartbeat after a commit" in old.cause
    assert "between BEGIN and first row" in new.cause


def test_a_bytea_payload_gets_a_converter_with_a_delegate() -> None:
    config = rendered("outbox: {payload: bytea}\n")
    assert config["value.converter"] == "io.debezium.converters.BinaryDataConverter"
    delegate = "value.converter.delegate.converter.type"
    assert config[delegate] == "org.apache.kafka.connect.json.JsonConverter"
    assert config[f"{delegate}.schemas.enable"] == "false"
    assert not any(key.startswith(delegate) for key in rendered())


def test_names_are_escaped_where_they_are_patterns() -> None:
    config = rendered("outbox: {table: my-schema.out_box}\nconnect: {topic_prefix: a.b}\n")
    assert config["table.include.list"] == r"my-schema\.out_box"
    assert config["predicates.isOutbox.pattern"] == r"a\.b\.my-schema\.out_box"
    assert config["topic.creation.messages.include"] == r"a\.b\.message"


def test_a_pattern_matches_its_name_only() -> None:
    name = r"a.b$c^d|e*f+g?h(i)[j]{k}\l-m"
    assert re.fullmatch(pattern(name), name)
    assert not re.fullmatch(pattern("a.b"), "axb")


def test_failover_follows_version_and_wish() -> None:
    assert rendered(major=17)["slot.failover"] == "true"
    assert rendered(major=16)["slot.failover"] == "false"


def test_topics_that_differ_get_a_group() -> None:
    config = rendered(
        "  defaults: {partitions: 4, replication_factor: 3, config: {retention.ms: 1}}\n"
        "  aggregates: {order: {}, a.b: {partitions: 12, config: {cleanup.policy: compact}}}\n"
    )
    assert config["topic.creation.groups"] == "messages,aggregate_a_b"
    assert config["topic.creation.default.partitions"] == "4"
    assert config["topic.creation.default.retention.ms"] == "1"
    group = "topic.creation.aggregate_a_b."
    assert {key: value for key, value in config.items() if key.startswith(group)} == {
        f"{group}include": r"outbox\.event\.a\.b",
        f"{group}partitions": "12",
        f"{group}replication.factor": "3",
        f"{group}retention.ms": "1",
        f"{group}cleanup.policy": "compact",
    }
    assert config["topic.creation.messages.replication.factor"] == "3"


def test_the_topic_template_is_the_routers() -> None:
    config = rendered("  topic: ev.{aggregate_type}.v1\n")
    assert config["transforms.outbox.route.topic.replacement"] == "ev.${routedByValue}.v1"


def test_optional_settings_appear_only_when_given() -> None:
    assert not any(key.startswith("database.ssl") for key in rendered() if key != "database.sslmode")


def test_the_user_has_the_last_word() -> None:
    config = rendered("connect: {config: {poll.interval.ms: 50, errors.tolerance: all, my.own: x}}\n")
    assert (config["poll.interval.ms"], config["errors.tolerance"], config["my.own"]) == ("50", "all", "x")


def test_overriding_a_protection_is_a_finding() -> None:
    config = "{poll.interval.ms: 50, errors.tolerance: all, slot.name: x, plugin.name: pgoutput}"
    own = definition(f"connect: {{config: {config}}}\n")
    slot, tolerance = protected_overrides(own, debezium=V370, postgres_major=18)
    assert "connect.config sets errors.tolerance=all. With all, a row" in tolerance.cause
    assert tolerance.remedy == "remove it, the profile says none"
    assert slot.remedy.startswith("set postgres.slot instead")


def test_nothing_is_a_finding_without_overrides() -> None:
    assert protected_overrides(definition(), debezium=V370, postgres_major=18) == ()


def test_every_property_has_a_reason() -> None:
    own = definition("connect: {config: {poll.interval.ms: 50, producer.override.sasl.jaas.config: x}}\n")
    found = reasons(own, debezium=V370, postgres_major=18)
    assert [reason.key for reason in found] == list(render(own, debezium=V370, postgres_major=18))
    assert all(reason.why for reason in found)
    by_key = {reason.key: reason for reason in found}
    assert by_key["poll.interval.ms"].overridden
    assert by_key["plugin.name"].protects
    assert by_key["producer.override.sasl.jaas.config"].value == "***"
    assert by_key["database.password"].value == "${env:CDC}"


def test_the_readme_lists_every_property() -> None:
    readme = (ROOT / "connectors/README.md").read_text("utf-8")
    rows = re.findall(r"^\| `([a-zA-Z.]+)` \| (.*?) \| (.*) \|$", readme, re.MULTILINE)
    listed = {(key, why) for key, _, why in rows}
    missing = [prop.key for prop in properties() if (prop.key, prop.why) not in listed]
    assert missing == []
