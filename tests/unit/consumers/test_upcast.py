"""Old payloads are upcast to the version of the handler; newer ones are rejected."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from outbox_consumers import Consumer, Event
from outbox_consumers.errors import UnreadablePayload, UsageError


def app() -> Consumer:
    made = Consumer("billing", kafka={"bootstrap.servers": "h:1"}, topics=["t"])

    @made.upcast("Placed", from_version=2)
    def euros(data: dict[str, Any]) -> dict[str, Any]:
        return data | {"currency": "EUR"}

    @made.upcast("Placed", from_version=1)
    def total(data: dict[str, Any]) -> dict[str, Any]:
        return {"total": data["amount"]}

    return made


def read(made: Consumer, version: int, data: Any) -> Any:
    event = Event("Placed", data, version=version)
    event._route = made._routes.find(b"Placed")
    return event.data


def test_a_chain_of_upcasts_leads_to_the_newest_version() -> None:
    made = app()
    made.handler("Placed")(lambda conn, event: None)
    assert read(made, 1, {"amount": 5}) == {"total": 5, "currency": "EUR"}
    assert read(made, 2, {"total": 5}) == {"total": 5, "currency": "EUR"}
    assert read(made, 7, {"x": 1}) == {"x": 1}
    assert read(made, 1, None) is None


def test_a_handler_with_a_version_gets_exactly_that_version() -> None:
    made = app()
    made.handler("Placed", version=2)(lambda conn, event: None)
    assert read(made, 1, {"amount": 5}) == {"total": 5}
    assert read(made, 2, {"total": 5}) == {"total": 5}
    with pytest.raises(UnreadablePayload, match="has version 3, its handler expects 2"):
        read(made, 3, {})


def test_upcasts_may_be_registered_after_the_handler() -> None:
    made = Consumer("billing", kafka={"bootstrap.servers": "h:1"}, topics=["t"])

    @made.handler("Placed", version=2)
    def placed(conn: psycopg.Connection[Any], event: Event) -> None: ...

    made.upcast("Placed", from_version=1)(lambda data: data | {"new": True})
    assert read(made, 1, {}) == {"new": True}
    with pytest.raises(UsageError, match="two upcasts of Placed from version 1"):
        made.upcast("Placed", from_version=1)(lambda data: data)
