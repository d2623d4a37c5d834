"""Rows that have been published are not published again by a relay, whatever became of the slot."""

from __future__ import annotations

import uuid
from threading import Event

import pytest
from confluent_kafka import Producer
from psycopg import sql

from fix_relay import NewRelayed, Relayed
from outbox_connectors.errors import ExitCode
from outbox_pipeline import provision, relay
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.errors import Refused
from outbox_pipeline.ids import publisher
from outbox_pipeline.ids.publisher import Publisher
from outbox_pipeline.operations import recover
from outbox_pipeline.relay import admission
from waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.stack

SETTINGS = relay.RelaySettings(until_empty=True)


def start(relayed: Relayed) -> int:
    """Relay until the outbox is empty; return how many events were published."""
    return relay.run(relayed.definition, SETTINGS, say=print, stop=Event()).published


def standing(relayed: Relayed) -> Publisher | None:
    with relayed.connect() as conn:
        return publisher.standing(conn, relayed.definition)


def with_slot(relayed: Relayed) -> None:
    with relayed.connect() as conn:
        conn.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (relayed.definition.postgres.slot,)
        )


def without_slot(relayed: Relayed) -> None:
    with relayed.connect() as conn:
        conn.execute("SELECT pg_drop_replication_slot(%s)", (relayed.definition.postgres.slot,))


def test_a_first_start_needs_no_proof_but_the_topics(relayed: Relayed) -> None:
    assert standing(relayed) is None
    relayed.write(50)
    assert start(relayed) == 50
    assert standing(relayed) is Publisher.RELAY


def test_published_rows_without_a_slot_are_found_by_their_ids(relayed: Relayed) -> None:
    """Nothing is written down: the relay was set up after the slot had been dropped by hand."""
    relayed.write(30)
    relayed.copied()
    start(relayed)
    relayed.put_back()
    with relayed.connect() as conn:
        conn.execute("DROP TABLE outbox_road")
    relayed.write(5)
    with pytest.raises(Refused, match="30 rows are in the topics already") as refused:
        start(relayed)
    assert "switch --to relay" in refused.value.remedy
    assert relayed.left() == 35
    assert relayed.ledger().duplicated == 0


def test_a_slot_dropped_by_hand_is_remembered(relayed: Relayed) -> None:
    start(relayed)
    with_slot(relayed)
    relayed.write(5)
    with pytest.raises(Refused, match="has a slot"):
        start(relayed)
    without_slot(relayed)
    for _ in range(2):
        with pytest.raises(Refused, match="the connector published this outbox last") as refused:
            start(relayed)
        assert "switch --to relay" in refused.value.remedy
    with relayed.connect() as conn:
        conn.execute("DELETE FROM outbox")  # nothing is left that could be published again
    assert start(relayed) == 0
    assert standing(relayed) is Publisher.RELAY


def test_a_worker_that_waited_for_a_switch_goes(relayed: Relayed) -> None:
    start(relayed)
    with relayed.connect() as conn:
        publisher.check_still_relay(conn, relayed.definition)
        publisher.write(conn, relayed.definition, Publisher.CDC, "test")
        with pytest.raises(Refused, match="handed to the connector"):
            publisher.check_still_relay(conn, relayed.definition)


def test_a_relay_at_work_goes_when_a_connector_comes(relayed: Relayed) -> None:
    relayed.write(10)
    process = relayed.start("--workers", "2")
    relayed.await_left(0)
    with_slot(relayed)
    out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == ExitCode.REFUSED, out
    assert "switch --to relay" in out
    with relayed.connect() as conn:
        assert publisher.written(conn, relayed.definition) is Publisher.CDC


def test_the_relay_is_never_written_down_beside_a_slot(relayed: Relayed) -> None:
    with_slot(relayed)
    with relayed.connect() as conn:
        publisher.write(conn, relayed.definition, Publisher.CDC, "test")
        publisher.write(conn, relayed.definition, Publisher.RELAY, "test")
        assert publisher.written(conn, relayed.definition) is Publisher.CDC


def test_apply_does_not_put_a_connector_beside_a_relay(relayed: Relayed) -> None:
    start(relayed)
    relayed.write(3)
    with relayed.site.admin() as conn, pytest.raises(Refused, match="has not finished") as refused:
        publisher.refuse_second(conn, relayed.definition)
    assert "switch --to cdc" in refused.value.remedy
    with_slot(relayed)  # by hand, or by a connector that was registered by hand
    with relayed.site.admin() as conn:
        publisher.refuse_second(conn, relayed.definition)
        assert publisher.written(conn, relayed.definition) is Publisher.CDC
        provision.apply_postgres(conn, relayed.definition)


def test_recover_leaves_to_switch_what_is_its(relayed: Relayed) -> None:
    definition = relayed.definition
    start(relayed)
    with relayed.site.admin() as conn, ConnectClient(definition.connect) as client:
        with pytest.raises(Refused, match="a relay publishes this outbox"):
            recover.plan(conn, client, definition)
        publisher.write(conn, definition, Publisher.CDC, "test")
        conn.execute("UPDATE outbox_relay SET until_position = 7")
        with pytest.raises(Refused, match="a switch to the connector was interrupted"):
            recover.plan(conn, client, definition)


def test_an_older_copy_of_the_database_is_recognised(new_relayed: NewRelayed) -> None:
    """Restored: the road is the relay's, as it was, but Kafka has later batches than the database."""
    relayed = new_relayed(shards=1)
    relayed.write(20)
    start(relayed)
    relayed.write(20)
    relayed.copied()
    start(relayed)
    relayed.restored()
    with pytest.raises(Refused, match="20 rows are in the topics already; the database is an older copy"):
        start(relayed)
    with relayed.connect() as conn:
        conn.execute("DELETE FROM outbox")
    relayed.write(5)
    assert start(relayed) == 5  # proven by ids: none of these is in a topic
    assert relayed.ledger().clean


def test_what_somebody_else_wrote_into_the_topics_is_no_proof(relayed: Relayed) -> None:
    producer = Producer(dict(relayed.definition.kafka.client))
    topic = relayed.definition.kafka.topic_of("order")
    odd: list[list[tuple[str, str | bytes | None]]] = [
        [],
        [("id", b"none")],
        [("id", None)],
        [("other", str(uuid.uuid4()).encode())],
    ]
    for headers in odd:
        producer.produce(topic, b"{}", b"k", headers=headers)
    producer.produce(topic, b"{}", b"k")
    assert producer.flush(30) == 0
    relayed.write(7)
    with relayed.site.admin() as conn:
        assert publisher.published(conn, relayed.definition) == 0
    assert start(relayed) == 7
    with relayed.site.admin() as conn:
        assert publisher.published(conn, relayed.definition) == 0


def test_the_guard_says_what_is_missing_before_it_asks_for_proof(relayed: Relayed) -> None:
    with relayed.connect() as conn:
        conn.execute(sql.SQL("DROP TABLE outbox_relay_batch"))
        with pytest.raises(Exception, match="table of batches is missing"):
            admission.check_start(conn, relayed.definition, SETTINGS)
