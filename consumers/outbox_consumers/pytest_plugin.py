"""Fixtures for pytest: `pytest_plugins = ["outbox_consumers.pytest_plugin"]` in your conftest.

outbox_dsn          the connection string of your test database: override it; default: PG* variables
outbox_connection   a connection as handlers get it, rolled back at the end; the inbox tables are there
outbox_event        makes events with new ids: `outbox_event("OrderPlaced", {"total": 5}, key="42")`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from uuid_utils.compat import uuid7

from outbox_consumers import testing
from outbox_consumers.event import Event
from outbox_consumers.inbox import schema


@pytest.fixture
def outbox_dsn() -> str:
    """The connection string of the test database; empty means libpq's PG* environment variables."""
    return ""


@pytest.fixture
def outbox_connection(outbox_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection in a transaction that never commits, with the inbox tables in it."""
    with testing.connection(outbox_dsn) as conn:
        schema.apply(conn, schema.steps())
        yield conn


@pytest.fixture
def outbox_event() -> Callable[..., Event]:
    """A factory of events, each with a new id."""

    def make(type: str, data: Any = None, **fields: Any) -> Event:
        return Event(type, data, **{"id": uuid7(), **fields})

    return make
