"""The administrator's client: what it does by itself, and what the definition may change."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from outbox_connectors.definition import Kafka, TopicSpec
from outbox_pipeline.errors import AccessDenied, ExitCode, LoginFailed, Unreachable
from outbox_pipeline.servers import kafka


def reached_by(**properties: str) -> Kafka:
    """Describe a Kafka that is reached with these properties, underscores for dots."""
    client = {name.replace("_", "."): value for name, value in properties.items()}
    return Kafka(client=client, topic="t", defaults=TopicSpec("t", 3, 1, {}), aggregates={})


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Collect the options of the clients that are made."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(kafka, "AdminClient", lambda options, logger: made.append(options))
    return made


def test_a_client_that_was_told_of_no_controller_soon_asks_again(options: list[dict[str, Any]]) -> None:
    """With the client's own five minutes it waits for a controller until its request times out."""
    kafka.administrator(reached_by(bootstrap_servers="kafka:9092"))
    assert options[0]["topic.metadata.refresh.interval.ms"] == 1000


def test_the_definition_has_the_last_word(options: list[dict[str, Any]]) -> None:
    kafka.administrator(reached_by(topic_metadata_refresh_interval_ms="30000"))
    assert options[0]["topic.metadata.refresh.interval.ms"] == "30000"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._AUTHENTICATION, LoginFailed),
        (KafkaError.SASL_AUTHENTICATION_FAILED, LoginFailed),
        (KafkaError._TRANSPORT, Unreachable),
        (KafkaError._SSL, Unreachable),
    ],
)
def test_a_rejected_login_is_told_from_a_broker_that_does_not_answer(
    code: int, kind: type[Unreachable]
) -> None:
    error = kafka.unreachable("kafka:9092", [KafkaError(code)])
    assert type(error) is kind
    assert error.exit_code is ExitCode.UNREACHABLE


@pytest.mark.parametrize("code", sorted(kafka.FORBIDDEN))
def test_a_missing_right_is_access_denied(code: int) -> None:
    answer: Future[None] = Future()
    answer.set_exception(KafkaException(KafkaError(code)))
    admin = kafka.administrator(reached_by(bootstrap_servers="127.0.0.1:1"))
    with pytest.raises(AccessDenied, match="Kafka refuses us"):
        admin.wait(answer, 1.0)
