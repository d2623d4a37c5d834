"""`outboxctl send`: one event, from a shell."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from uuid import UUID

import click
import psycopg

from outbox_connectors import event as contract
from outbox_connectors.definition import Definition, Payload
from outbox_connectors.errors import ExitCode, Failed, UsageError
from outbox_connectors.record import Event, JsonText
from outbox_pipeline import outbox
from outbox_pipeline.cli import Invocation, output, pass_invocation
from outbox_pipeline.servers import postgres, topic_reader


@click.command()
@click.argument("aggregate_type")
@click.argument("aggregate_id")
@click.argument("event_type")
@click.argument("payload", required=False)
@click.option("--null", "tombstone", is_flag=True, help="Send a tombstone: an event without a payload.")
@click.option("--event-version", type=int, default=1, show_default=True, help="Version of the payload.")
@click.option("--headers", metavar="JSON", help="Headers of the application, as one JSON document.")
@click.option("--correlation-id", metavar="TEXT", help="The business process this belongs to.")
@click.option("--causation-id", metavar="TEXT", help="The message that caused this one.")
@click.option("--traceparent", metavar="TEXT", help="W3C trace context.")
@click.option("--id", "event_id", type=click.UUID, help="Use this id; a second send of it is refused.")
@click.option("--occurred-at", metavar="TIME", help="ISO 8601 with a time zone; now if not given.")
@click.option("--dry-run", is_flag=True, help="Check the event and show its record, write nothing.")
@pass_invocation
def send(
    invocation: Invocation,
    aggregate_type: str,
    aggregate_id: str,
    event_type: str,
    payload: str | None,
    tombstone: bool,
    event_version: int,
    headers: str | None,
    correlation_id: str | None,
    causation_id: str | None,
    traceparent: str | None,
    event_id: UUID | None,
    occurred_at: str | None,
    dry_run: bool,
) -> int:
    """Write one event into the outbox and print its id.

    PAYLOAD is JSON (text for a bytea outbox), @FILE or - for standard input:

    \b
      outboxctl send order 42 OrderPlaced '{"total": 99}'
      outboxctl send order 42 OrderPlaced @order.json
      outboxctl send order 42 OrderForgotten --null

    The event is committed alone, in a transaction of its own. Services use outbox.add, in the
    transaction of their data.
    """
    definition = invocation.definition()
    event = outbox.event(
        aggregate_type=aggregate_type,
        aggregate_id=aggregate_id,
        event_type=event_type,
        payload=_payload(payload, tombstone, definition.outbox.payload),
        event_version=event_version,
        headers=None if headers is None else _json("--headers", headers),
        correlation_id=correlation_id,
        causation_id=causation_id,
        traceparent=traceparent,
        event_id=event_id,
        occurred_at=None if occurred_at is None else _moment(occurred_at),
    )
    contract.validate(event, definition.outbox.payload)
    if not dry_run:
        _write(definition, event)
    _show(invocation, definition, event, dry_run)
    return ExitCode.OK


def _write(definition: Definition, event: Event) -> None:
    table = definition.outbox.table
    with postgres.as_admin(definition, "outboxctl send") as conn:
        try:
            with conn.transaction():
                outbox.add_many(conn, [event], table=table)
        except psycopg.Error as error:
            raise _refused(error, definition, event) from error


def _refused(error: psycopg.Error, definition: Definition, event: Event) -> Failed:
    place = f"table {definition.outbox.table} of database {definition.postgres.connector.database}"
    if isinstance(error, psycopg.errors.UniqueViolation):
        return Failed(f"an event with id {event.id} exists already", where=place, remedy="leave out --id")
    problem = " ".join((error.diag.message_primary or str(error)).split())
    if isinstance(error, psycopg.errors.UndefinedTable):
        return Failed(problem, where=place, remedy="run outboxctl apply")
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return Failed(problem, where=place, remedy="connect as one of outbox.writers, or add this role there")
    return Failed(problem, where=place)


def _show(invocation: Invocation, definition: Definition, event: Event, dry_run: bool) -> None:
    topic = definition.kafka.topic_of(event.aggregate_type)
    if not (invocation.json or dry_run):
        output.progress(f"written to {definition.outbox.table}; goes to {topic}, key {event.aggregate_id}")
        output.line(str(event.id))
        return
    record = contract.record_of(event, topic, definition.outbox.payload)
    shown = {
        "id": str(event.id),
        "written": not dry_run,
        "topic": topic,
        "key": topic_reader.text(record.key),
        "value": topic_reader.text(record.value),
        "headers": {name: topic_reader.text(value) for name, value in record.headers},
    }
    if invocation.json:
        output.json_document(shown)
        return
    output.progress("nothing was written; the record would be")
    for name, value in ("topic", topic), ("key", shown["key"]), ("value", shown["value"]):
        output.line(f"{name}: {'(null)' if value is None else topic_reader.harmless(str(value))}")
    for name, raw in record.headers:
        output.line(f"header {name}: {'(null)' if raw is None else topic_reader.harmless(raw.decode())}")


def _payload(argument: str | None, tombstone: bool, kind: Payload) -> JsonText | bytes | None:
    if tombstone != (argument is None):
        raise UsageError(
            "a payload and --null exclude each other" if tombstone else "the payload is missing",
            remedy="give JSON, @FILE, - for standard input, or --null for a tombstone",
        )
    if argument is None:
        return None
    raw = _raw(argument)
    return raw if kind is Payload.BYTEA else _json("payload", raw)


def _raw(argument: str) -> bytes:
    if argument == "-":
        return sys.stdin.buffer.read()
    if not argument.startswith("@"):
        return argument.encode("utf-8", "surrogateescape")  # a shell may hand over any bytes
    try:
        return Path(argument[1:]).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the payload: {error.strerror}", where=argument[1:]) from error


def _json(name: str, raw: str | bytes) -> JsonText | None:
    """Check that a text is JSON, and pass it on as it is: a number never becomes a float on the way."""
    try:
        text = raw if isinstance(raw, str) else raw.decode("utf-8-sig")
        value = json.loads(text, parse_int=str, parse_float=str)
    except UnicodeDecodeError:
        raise UsageError(f"{name} is not UTF-8") from None
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"{name} is not JSON: {error}", remedy="""quote it, like '{"total": 1}'""") from None
    return None if value is None else JsonText(text)


def _moment(written: str) -> datetime:
    try:
        return datetime.fromisoformat(written)
    except ValueError:
        raise UsageError(
            f"--occurred-at {written!r} is no time", remedy="write it as 2026-11-29T12:00:00Z"
        ) from None
