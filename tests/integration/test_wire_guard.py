"""A connector that writes another form than the contract: ids are found, and nothing is written beside it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import psycopg
import pytest
from confluent_kafka import Message

from fix_provision import Pipeline
from fix_relay import Relayed
from outbox_connectors.errors import ExitCode
from outbox_connectors.profile import PLACEMENT
from outbox_pipeline import outbox
from outbox_pipeline.errors import Refused
from outbox_pipeline.operations import audit, replay
from outbox_pipeline.operations.audit import AuditReport
from outbox_pipeline.operations.replay import Selection
from outbox_pipeline.relay import schema
from waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.stack, pytest.mark.slow]

JSON = "org.apache.kafka.connect.json.JsonConverter"
STRING = "org.apache.kafka.connect.storage.StringConverter"
HEADERS = "transforms.outbox.table.fields.additional.placement"
# What its readers see of it: the key in quotes, every value of a header with a schema around it, four
# headers of Debezium's own before the id, the id once more under another name.
OTHER_FORM = {
    "key.converter": JSON,
    "key.converter.schemas.enable": "false",
    "header.converter": JSON,
    "extended.headers.enabled": "true",
    HEADERS: f"id:header:event_id,{PLACEMENT}",
}
HARMLESS = {
    "max.batch.size": "3",
    "max.queue.size": "9",
    "snapshot.mode": "initial",
    "decimal.handling.mode": "string",
    "provide.transaction.metadata": "true",
    "tombstones.on.delete": "true",
    "header.converter": STRING,
    "producer.override.linger.ms": "7",
    "producer.override.compression.type": "gzip",
    "transforms.outbox.route.tombstone.on.empty.payload": "true",
    "transforms.outbox.table.op.invalid.behavior": "warn",
    "errors.log.enable": "false",
}


def applied(pipeline: Pipeline, config: Mapping[str, str]) -> Pipeline:
    """The pipeline with these properties in connect.config, delivering."""
    changed = pipeline.changed(connect={"config": config})
    done = changed.run("apply", "--no-wait")
    assert done.code == 0, done.err
    return changed


def write(pipeline: Pipeline, count: int = 5) -> list[str]:
    with psycopg.connect(pipeline.site.database.conninfo) as conn:
        return [
            str(
                outbox.add(
                    conn,
                    aggregate_type="order",
                    aggregate_id=str(number),
                    event_type="Counted",
                    payload={"n": number, "text": "é"} if number else None,
                    correlation_id="c" if number % 2 else None,
                    headers={"tenant": "a", "number": 1.50} if number % 2 else None,
                )
            )
            for number in range(count)
        ]


def books(pipeline: Pipeline) -> AuditReport:
    with pipeline.site.admin() as conn:
        return audit.audit(conn, pipeline.site.definition, settle_seconds=PATIENCE_SECONDS)


def records(pipeline: Pipeline) -> list[Message]:
    return Relayed(pipeline.site, pipeline.folder / "none.yaml").read()


def as_written(message: Message) -> tuple[object, ...]:
    return (
        message.topic(),
        message.partition(),
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
    )


def test_events_in_another_form_are_found_and_not_published_again(own_pipeline: Pipeline) -> None:
    pipeline = applied(own_pipeline, OTHER_FORM)
    write(pipeline)
    found = books(pipeline)
    assert (found.delivered, found.missing, found.unexpected, found.duplicated) == (5, 0, 0, 0)
    before = sorted(map(repr, map(as_written, records(pipeline))))  # partitions come in any order
    assert {message.key() for message in records(pipeline)} == {f'"{number}"'.encode() for number in range(5)}
    with pipeline.site.admin() as conn:
        schema.init(conn, pipeline.site.definition, schema.SetUpOptions(2, archive=True), say=print)
    state = pipeline.sql("SELECT active FROM pg_replication_slots WHERE slot_name = {slot}")
    for command in (
        ("recover",),
        ("recover", "--dry-run"),
        ("replay", "--aggregate", "order", "3", "--reason", "x"),
        ("replay", "--aggregate", "order", "3", "--reason", "x", "--dry-run"),
        ("switch", "--to", "relay"),
        ("switch", "--to", "cdc"),
        ("relay", "--until-empty"),
    ):
        done = pipeline.run(*command)
        assert done.code == ExitCode.REFUSED, (command, done.err)
        assert "key.converter = " in done.err
        assert "the key is not the text of aggregate_id" in done.err
        assert "extended.headers.enabled" in done.err
    assert sorted(map(repr, map(as_written, records(pipeline)))) == before
    assert pipeline.sql("SELECT active FROM pg_replication_slots WHERE slot_name = {slot}") == state
    assert pipeline.sql("SELECT to_regclass('outbox_replay')") == [(None,)]


def test_the_registered_connector_counts_where_the_definition_does_not_say_it(own_pipeline: Pipeline) -> None:
    """Somebody has changed the connector by hand: only Connect knows."""
    pipeline = applied(own_pipeline, {})
    write(pipeline)
    assert books(pipeline).missing == 0
    name = pipeline.site.definition.connect.connector
    with pipeline.client() as client:
        live = client.config(name) or {}
        client.put_config(name, {**live, "extended.headers.enabled": "true"})
    before = len(records(pipeline))
    for command in (("recover",), ("replay", "--aggregate", "order", "3", "--reason", "x")):
        done = pipeline.run(*command)
        assert done.code == ExitCode.REFUSED, (command, done.err)
        assert f"connector {name}: " in done.err
        assert "extended.headers.enabled = true" in done.err
    assert len(records(pipeline)) == before
    with pipeline.client() as client:
        client.put_config(name, live)
    assert pipeline.run("recover", "--dry-run").code == ExitCode.OK


def test_a_harmless_difference_changes_no_byte_and_is_not_refused(own_pipeline: Pipeline) -> None:
    pipeline = applied(own_pipeline, HARMLESS)
    write(pipeline)
    assert books(pipeline).missing == 0
    before = [as_written(message) for message in records(pipeline)]
    assert len(before) == 5
    done = pipeline.run("replay", "--since", "2000-01-01T00:00:00Z", "--reason", "compare")
    assert done.code == ExitCode.OK, done.err
    after = [as_written(message) for message in records(pipeline)]
    assert sorted(map(repr, after)) == sorted(chain.from_iterable([repr(one)] * 2 for one in before))
    done = pipeline.run("recover")
    assert done.code == ExitCode.OK, done.err
    assert "0 events published" in done.out


def test_a_reference_is_refused_by_its_name(own_pipeline: Pipeline) -> None:
    with own_pipeline.site.admin() as conn:
        changed = own_pipeline.changed(connect={"config": {"key.converter": "${file:/converters:key}"}})
        with pytest.raises(Refused, match=r"key.converter = .*known to the worker alone"):
            replay.replay(conn, changed.site.definition, Selection(aggregate_type="order"), "x")
