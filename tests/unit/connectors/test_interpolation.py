"""`${NAME}` is ours, `${provider:...}` is Kafka's."""

from __future__ import annotations

import pytest

from outbox_connectors.interpolation import (
    BrokenReference,
    MissingVariable,
    interpolate,
    refers_to_provider,
)

ENVIRON = {"HOST": "db", "EMPTY": "", "TRICKY": "${HOST} $${", "PORT": "5432"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("${HOST}", "db"),
        ("${HOST}:${PORT}", "db:5432"),
        ("${HOST:-other}", "db"),
        ("${NONE:-other}", "other"),
        ("${NONE:-}", ""),
        ("${EMPTY}", ""),
        ("${EMPTY:-other}", "other"),
        ("${NONE:-kafka:9092}", "kafka:9092"),
        ("${env:HOST}", "${env:HOST}"),
        ("${file:/run/secrets/x.properties:password}", "${file:/run/secrets/x.properties:password}"),
        ("$${HOST}", "${HOST}"),
        ("$$${HOST}", "$${HOST}"),
        ("$HOST $", "$HOST $"),
        ("${TRICKY}", "${HOST} $${"),
    ],
)
def test_interpolation(text: str, expected: str) -> None:
    assert interpolate(text, ENVIRON) == expected


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(MissingVariable) as caught:
        interpolate("x ${NONE}", ENVIRON)
    assert caught.value.name == "NONE"


@pytest.mark.parametrize("text", ["${", "${}", "${1X}", "${A B}", "${HOST", "${:-x}"])
def test_a_broken_reference_is_refused(text: str) -> None:
    with pytest.raises(BrokenReference):
        interpolate(text, ENVIRON)


@pytest.mark.parametrize(
    ("text", "refers"),
    [
        ("${env:X}", True),
        ("${file:/a:b}", True),
        ("secret", False),
        ("${env:X}tail", False),
        ("${X:-secret}", False),
        ("", False),
    ],
)
def test_references_to_a_provider(text: str, refers: bool) -> None:
    assert refers_to_provider(text) is refers
