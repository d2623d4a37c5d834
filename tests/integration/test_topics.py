"""Topics on a real broker: inspected, created, widened, changed; and a broker that is not there."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fix_stack import Stack
from outbox_connectors.definition import Kafka, TopicSpec
from outbox_pipeline.errors import DefinitionError, Failed, Unreachable
from outbox_pipeline.servers import topics

pytestmark = pytest.mark.stack


def kafka(bootstrap: str, **client: str) -> Kafka:
    properties = {name.replace("_", "."): value for name, value in client.items()}
    template = TopicSpec("outbox.event.{aggregate_type}", 1, 1, {})
    return Kafka({"bootstrap.servers": bootstrap, **properties}, template.name, template, {})


def spec(
    name: str, partitions: int = 3, replicas: int = 1, config: Mapping[str, str] | None = None
) -> TopicSpec:
    return TopicSpec(name, partitions, replicas, config or {})


def test_a_topic_is_created_and_seen_as_asked_for(stack: Stack, pipeline_name: str) -> None:
    broker = kafka(stack.kafka)
    asked = spec(pipeline_name, 3, config={"retention.ms": "604800000", "max.message.bytes": "2000000"})
    assert topics.create(broker, [asked]) == (pipeline_name,)
    state = topics.inspect(broker, [pipeline_name])[pipeline_name]
    assert state is not None
    assert (state.partitions, state.replication_factor, state.leaderless) == (3, 1, 0)
    assert state.overrides == asked.config
    assert state.config["cleanup.policy"] == "delete"


def test_asking_for_a_topic_does_not_create_it(stack: Stack, pipeline_name: str) -> None:
    broker = kafka(stack.kafka)
    assert topics.inspect(broker, [pipeline_name]) == {pipeline_name: None}
    assert topics.inspect(broker, [pipeline_name]) == {pipeline_name: None}
    assert topics.inspect(broker, []) == {}


def test_creating_twice_leaves_the_first_as_it_is(stack: Stack, pipeline_name: str) -> None:
    broker = kafka(stack.kafka)
    topics.create(broker, [spec(pipeline_name, 2)])
    other = f"{pipeline_name}.other"
    assert topics.create(broker, [spec(pipeline_name, 5), spec(other)]) == (other,)
    state = topics.inspect(broker, [pipeline_name])[pipeline_name]
    assert state is not None
    assert state.partitions == 2


def test_partitions_are_added_and_never_taken_away(stack: Stack, pipeline_name: str) -> None:
    broker = kafka(stack.kafka)
    topics.create(broker, [spec(pipeline_name, 2)])
    topics.add_partitions(broker, {pipeline_name: 6})
    state = topics.inspect(broker, [pipeline_name])[pipeline_name]
    assert state is not None
    assert state.partitions == 6
    with pytest.raises(Failed, match="never fewer"):
        topics.add_partitions(broker, {pipeline_name: 3})


def test_properties_change_one_by_one(stack: Stack, pipeline_name: str) -> None:
    broker = kafka(stack.kafka)
    topics.create(broker, [spec(pipeline_name, config={"retention.ms": "1000000", "segment.ms": "500000"})])
    topics.alter_config(broker, {pipeline_name: {"retention.ms": "2000000", "segment.ms": None}})
    state = topics.inspect(broker, [pipeline_name])[pipeline_name]
    assert state is not None
    assert state.overrides == {"retention.ms": "2000000"}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"replication_factor": 3}, "lower replication_factor"),
        ({"partitions": 0}, "partitions"),
        ({"config": {"retention.mss": "1"}}, "retention.mss"),
        ({"config": {"retention.ms": "soon"}}, "retention.ms"),
        ({"name": "not a topic!"}, "letters, digits"),
    ],
)
def test_what_the_broker_refuses_names_the_topic_and_the_reason(
    stack: Stack, pipeline_name: str, change: dict[str, Any], text: str
) -> None:
    wanted = replace(spec(pipeline_name), **change)
    with pytest.raises(Failed) as caught:
        topics.create(kafka(stack.kafka), [wanted])
    assert text in str(caught.value)
    assert wanted.name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_topic_cannot_be_changed(stack: Stack, pipeline_name: str) -> None:
    with pytest.raises(Failed, match=pipeline_name):
        topics.alter_config(kafka(stack.kafka), {pipeline_name: {"retention.ms": "1"}})
    with pytest.raises(Failed, match=pipeline_name):
        topics.add_partitions(kafka(stack.kafka), {pipeline_name: 2})


def test_a_broker_that_is_not_there_is_named() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(Unreachable) as caught:
            topics.inspect(kafka(address), ["any"], timeout_seconds=2)
    assert f"Kafka at {address}" in str(caught.value)
    assert "Connection refused" in str(caught.value)


def test_an_unknown_host_is_known_at_once() -> None:
    with pytest.raises(Unreachable, match=r"kafka\.invalid"):
        topics.inspect(kafka("kafka.invalid:9092"), ["any"], timeout_seconds=60)


def test_tls_towards_a_plain_listener_is_explained(stack: Stack) -> None:
    with pytest.raises(Unreachable) as caught:
        topics.inspect(kafka(stack.kafka, security_protocol="ssl"), ["any"], timeout_seconds=2)
    assert "security.protocol" in str(caught.value)


def test_a_password_towards_a_listener_without_one_shows_no_password(stack: Stack) -> None:
    client = {"security_protocol": "sasl_plaintext", "sasl_mechanism": "PLAIN"}
    broker = kafka(stack.kafka, sasl_username="ann", sasl_password="hunter2", **client)
    with pytest.raises(Unreachable) as caught:
        topics.inspect(broker, ["any"], timeout_seconds=5)
    assert "hunter2" not in str(caught.value)


def test_a_property_that_librdkafka_does_not_know_is_the_definitions_fault() -> None:
    with pytest.raises(DefinitionError, match=r"bootstrap\.serverz"):
        topics.inspect(kafka("localhost:1", bootstrap_serverz="x"), ["any"])
