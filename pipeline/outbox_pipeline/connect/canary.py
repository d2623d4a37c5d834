"""Prove the way from PostgreSQL to Kafka: write a message into the log, see it arrive in a topic.

A connector that is RUNNING may deliver nothing: with a lost slot, a wrong publication or a blocked
producer Connect reports RUNNING all the same (measured on Debezium 3.7.0.Final). A canary that came
through has passed the log, the slot, Debezium, the converters and the producer.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psycopg
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_connectors.findings import Severity
from outbox_pipeline.connect import message_gate, offsets
from outbox_pipeline.connect.client import ConnectClient, ConnectorStatus, SourceOffset
from outbox_pipeline.connect.offsets import Positions
from outbox_pipeline.errors import Failed, OutboxError, Refused
from outbox_pipeline.servers import logical_messages, lsn, slots
from outbox_pipeline.servers.slots import LiveSlot
from outbox_pipeline.servers.topic_reader import Reader

_LSN = re.compile(rb'\blsn"?\s*[=:]\s*(\d{1,20})\b')
READ_SECONDS = 0.1
DIAGNOSIS_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class CanaryArrival:
    """A canary that arrived: how long it took and where in the log it started."""

    seconds: float
    lsn: str


@dataclass(frozen=True, slots=True)
class PathState:
    """What the stations of the way looked like when a canary did not arrive."""

    slot: LiveSlot | None
    connect_problem: str  # why Kafka Connect could not be asked; empty when it answered
    connector: ConnectorStatus | None
    topic_exists: bool
    log_end: int
    config: Mapping[str, str] | None = None  # of the live connector; None: it is not there or not known
    offset: SourceOffset | None = None


def travel(
    conn: psycopg.Connection[TupleRow],
    definition: Definition,
    *,
    timeout_seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> CanaryArrival:
    """Send a canary and wait for it in `definition.message_topic`, at most `timeout_seconds`.

    Reads from the topic's end before the canary is written and recognises it by its position in the
    log, so neither an old one nor another process's is taken for it. Changes nothing that outlives
    it, joins no group. On an autocommit connection it leaves no transaction open. Raises Failed with
    the station it stopped at, and Unreachable when Kafka cannot be read. Raises Refused, before anything
    is written, where the live connector captures other messages than the definition's or its topic is
    not there: the canary would stop it.
    """
    topic = definition.message_topic
    pattern = re.compile(re.escape(topic))
    _refuse_harm(conn, definition)
    with Reader(definition.kafka) as reader:
        found = reader.follow(pattern, from_end=True)
        began = clock()
        position = logical_messages.emit(conn, definition.canary_prefix)
        while clock() - began < timeout_seconds:
            if any(is_message_at(position, arrived.value) for arrived in reader.read(READ_SECONDS)):
                return CanaryArrival(clock() - began, lsn.text(position))
            found = found or reader.follow(pattern)
    sighting = look(conn, definition, topic_exists=bool(found))
    problem, remedy = stopped_at(sighting, definition, position)
    raise Failed(
        f"no canary arrived in {topic} within {timeout_seconds:g} s: {problem}",
        where=f"pipeline {definition.pipeline}",
        remedy=remedy,
    )


def _refuse_harm(conn: psycopg.Connection[TupleRow], definition: Definition) -> None:
    """Raise where a canary must not be sent: for the station that is broken, where one is, else Refused."""
    reason = message_gate.why_not(definition, definition.canary_prefix)
    if not reason:
        return
    seen = look(conn, definition, topic_exists=True)
    where = f"pipeline {definition.pipeline}"
    broken = _at_the_slot(seen, definition) or _at_the_connector(seen, definition.connect.connector)
    if broken is not None:
        raise Failed(f"no canary was sent: {broken[0]}", where=where, remedy=broken[1])
    remedy = "see outboxctl plan: only a connector as apply makes it takes a canary without harm"
    raise Refused(f"no canary was sent: {reason}", where=where, remedy=remedy)


def is_message_at(position: int, value: bytes | None) -> bool:
    """Recognise the record of the logical message that was written at `position`, in bytes of the log.

    The content of a message cannot be read back: StringConverter prints a Java buffer in its place.
    Its position can, from `lsn=` in a Struct's text as from `"lsn":` in JSON, and it is the very number
    that pg_logical_emit_message returned (measured on PostgreSQL 14 to 18).
    """
    return value is not None and any(int(found) == position for found in _LSN.findall(value))


def look(conn: psycopg.Connection[TupleRow], definition: Definition, *, topic_exists: bool) -> PathState:
    """Look at slot, connector and topic. Never raises for what it cannot see."""
    # The slot before the offset and the log's end after it, so that neither seems to be behind.
    slot = slots.read(conn, definition.postgres.slot)
    problem, status, config, offset = "", None, None, None
    try:
        with ConnectClient(
            definition.connect, timeout=DIAGNOSIS_SECONDS, patience=DIAGNOSIS_SECONDS
        ) as client:
            status = client.status(definition.connect.connector)
            if status is not None:
                config = client.config(definition.connect.connector)
                offset = client.offsets(definition.connect.connector)
    except OutboxError as error:
        problem = error.problem
    return PathState(
        slot=slot,
        connect_problem=problem,
        connector=status,
        topic_exists=topic_exists,
        log_end=offsets.read_log_end(conn),
        config=config,
        offset=offset,
    )


def stopped_at(seen: PathState, definition: Definition, position: int) -> tuple[str, str]:
    """Say at which station a canary written at `position` stopped, and what to do about it."""
    at_the_slot = _at_the_slot(seen, definition)
    if at_the_slot is not None or seen.slot is None:
        return at_the_slot or ("", "")
    return _at_the_connector(seen, definition.connect.connector) or _on_the_way(
        seen.slot, seen.topic_exists, definition, position
    )


def _at_the_slot(seen: PathState, definition: Definition) -> tuple[str, str] | None:
    config = seen.config or offsets.config_of(definition)
    positions = Positions(definition.postgres.slot, config, seen.offset, seen.slot, seen.log_end)
    worst = offsets.verdicts(positions)[0]
    return (worst.cause, worst.next_step) if worst.severity is Severity.CRITICAL else None


def _at_the_connector(seen: PathState, name: str) -> tuple[str, str] | None:
    if seen.connect_problem:
        return f"Kafka Connect cannot be asked: {seen.connect_problem}", "check connect.url and the worker"
    if seen.connector is None:
        return f"connector {name} does not exist", "run outboxctl apply"
    failed = next((task for task in seen.connector.tasks if task.state == "FAILED"), None)
    if failed is not None:
        return (
            f"task {failed.id} of connector {name} has FAILED: {failed.trace_line}",
            "mend the cause, then run outboxctl connectors restart --failed",
        )
    if seen.connector.state != "RUNNING":
        return f"connector {name} is {seen.connector.state}", f"see outboxctl connectors status {name}"
    return None


def _on_the_way(slot: LiveSlot, topic_exists: bool, definition: Definition, position: int) -> tuple[str, str]:
    name, topic = definition.postgres.slot, definition.message_topic
    if not slot.active:
        return (
            f"connector {definition.connect.connector} says RUNNING, but nobody reads slot {name}",
            "read the worker's log: it retries a connection that fails",
        )
    confirmed = slot.confirmed_flush_lsn or "0/0"
    if lsn.parse(confirmed) > position:
        return (
            f"Debezium has read past {lsn.text(position)} without delivering it",
            "check message.prefix.include.list and topic.prefix with outboxctl plan",
        )
    if not topic_exists:
        return (
            f"slot {name} is read, but topic {topic} does not exist",
            "create the topic: the producer waits for it without an error",
        )
    return (
        f"slot {name} is read and confirmed up to {confirmed}, not yet to {lsn.text(position)}",
        "wait for the backlog, or read the worker's log for what the producer waits for",
    )
