"""Check the heartbeat and logical messages that advance the slot, and what a heartbeat can lose."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from outbox_connectors.checks_values import MEASURED, C, W
from outbox_connectors.config_view import View
from outbox_connectors.findings import Finding
from outbox_connectors.profile import FIXES_COMMIT_OFFSETS

_QUERY: Final = "heartbeat.action.query"
_INTERVAL: Final = "heartbeat.interval.ms"
_MESSAGE: Final = "SELECT pg_logical_emit_message(false, 'prefix', '')"


def _bare_heartbeat(view: View) -> Iterator[Finding]:
    if not view.heartbeats or view.get(_QUERY):
        return
    if view.older_than(FIXES_COMMIT_OFFSETS):
        cause = f"{_INTERVAL} without a query stores offsets after which 3.6 loses rows at a restart"
        remedy = f"set {_INTERVAL}=0 and send logical messages from outside, or set {_QUERY}"
        yield Finding("bare-heartbeat", C, cause, remedy, "Debezium dbz#76")
        return
    cause = f"{_INTERVAL} without {_QUERY} does not move the slot while only other tables change"
    yield Finding("bare-heartbeat", W, cause, f"set {_QUERY}={_MESSAGE}", MEASURED)


def _unused_query(view: View) -> Iterator[Finding]:
    if view.get(_QUERY) and not view.heartbeats:
        cause = f"{_QUERY} never runs without {_INTERVAL}, and no error says so"
        yield Finding("heartbeat-query-unused", W, cause, f"set {_INTERVAL}=10000", MEASURED)


def _query(view: View) -> Iterator[Finding]:
    query = view.get(_QUERY)
    if not query:
        return
    message = re.search(r"pg_logical_emit_message\s*\(\s*(\w+)", query, re.IGNORECASE)
    if message is None:
        cause = (
            f"{_QUERY} writes a table, which needs a grant and a place in the publication to have an effect"
        )
        yield Finding("heartbeat-query", W, cause, f"use {_MESSAGE}", MEASURED)
    elif message[1].lower() not in ("false", "f"):
        cause = f"{_QUERY} sends transactional messages, which store offsets of type COMMIT"
        yield Finding("heartbeat-query", W, cause, f"use {_MESSAGE}", "Debezium dbz#76")


def _often(view: View) -> Iterator[Finding]:
    interval = view.number(_INTERVAL, 0)
    if 0 < interval < 1000 or (0 < interval < 10_000 and not view.older_than(FIXES_COMMIT_OFFSETS)):
        cause = f"{_INTERVAL}={interval} makes a heartbeat between BEGIN and first row, and a loss, likelier"
        yield Finding("heartbeat-too-often", W, cause, f"set {_INTERVAL}=10000", "Debezium dbz#76")


def _nothing_moves(view: View) -> Iterator[Finding]:
    """Check that ticks sent by another process are captured; otherwise nothing advances the slot."""
    if view.heartbeats:
        return
    if view.get("message.prefix.exclude.list"):
        cause = f"message.prefix.exclude.list without {_INTERVAL}: a tick that is not captured moves nothing"
        remedy = "use message.prefix.include.list with the tick's prefix"
        yield Finding("excluded-ticks", C, cause, remedy, MEASURED)
    elif not view.get("message.prefix.include.list"):
        cause = "no heartbeat and no message prefix: WAL piles up while only other tables change"
        remedy = "set message.prefix.include.list and run outboxctl watch, or set a heartbeat"
        yield Finding("no-heartbeat", W, cause, remedy, MEASURED)


def _prefixes(view: View) -> Iterator[Finding]:
    include, exclude = view.get("message.prefix.include.list"), view.get("message.prefix.exclude.list")
    if include and exclude:
        cause = "message.prefix.include.list and .exclude.list exclude each other"
        yield Finding("message-prefixes", C, cause, "keep the include list", MEASURED)
    elif not include and not exclude:
        cause = "logical messages of every other tool on the database become records"
        yield Finding("foreign-messages", W, cause, "set message.prefix.include.list", MEASURED)


RULES: Final[tuple[Callable[[View], Iterator[Finding]], ...]] = (
    _bare_heartbeat,
    _unused_query,
    _query,
    _often,
    _nothing_moves,
    _prefixes,
)
