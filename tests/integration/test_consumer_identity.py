"""An event is never taken for another: ids of two sources, restarted, empty, or stored by older versions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import psycopg
import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import TopicPartition

from fix_consumer import Bench, RecordHeaders, create_topic, running, write_effect
from outbox_consumers import Consumer, DurableInbox, Event, Reject, claim
from outbox_consumers.durable import steps
from outbox_consumers.errors import UndeclaredIds, UsageError
from outbox_consumers.failures import dead_letter
from outbox_consumers.identity import scoped_id, unscoped_id
from outbox_consumers.inbox.schema import apply
from waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack

NIL = str(UUID(int=0)).encode()


@pytest.fixture
def other(bench: Bench) -> str:
    """A second topic, of another service."""
    return create_topic(bench.server, f"{bench.topic}.refund")


def send(
    bench: Bench, topic: str, ids: Sequence[bytes | None], *, kind: str = "Placed", first: int = 1
) -> None:
    """Send an event for each id, numbered from `first`, to partition 0."""
    for number, text in enumerate(ids, start=first):
        headers: RecordHeaders = [("id", text), ("event_type", kind.encode())]
        value = b'{"n": %d}' % number
        bench.producer.produce(topic, value, f"k{number}", partition=0, headers=headers)
    bench.flush()


def handled(app: Consumer) -> int:
    counters = app.counters
    return counters.processed + counters.duplicates + counters.dead_letters


def keep_as_before(bench: Bench, *texts: bytes) -> None:
    """Put ids into the inbox as versions stored them that knew no scope."""
    with bench.database.connect() as conn:
        for text in texts:
            conn.execute("INSERT INTO inbox VALUES (%s, 'billing')", (UUID(bytes=unscoped_id(text)),))


def offset(bench: Bench, topic: str) -> int:
    client = KafkaConsumer({"bootstrap.servers": bench.server.kafka, "group.id": f"{bench.topic}.billing"})
    (place,) = client.committed([TopicPartition(topic, 0)], timeout=PATIENCE_SECONDS)
    client.close()
    return max(0, int(place.offset))


def test_two_outboxes_with_the_same_numbers_are_two_sources(bench: Bench, other: str) -> None:
    send(bench, bench.topic, [b"1", b"2", b"3"])
    send(bench, other, [b"1", b"2", b"3"], first=11)
    with running(bench.applying(topics=[bench.topic, other])) as app:
        until(lambda: handled(app) == 6)
    assert (app.counters.processed, app.counters.duplicates) == (6, 0)
    assert sorted(bench.effects()) == [1, 2, 3, 11, 12, 13]


def test_a_number_that_comes_again_from_its_source_is_a_duplicate(bench: Bench, other: str) -> None:
    send(bench, bench.topic, [b"1", b"2", b"1", b"2"])
    with running(bench.applying(topics=[bench.topic, other])) as app:
        until(lambda: handled(app) == 4)
    assert sorted(bench.effects()) == [1, 2]


def test_topics_of_one_source_share_a_scope(bench: Bench, other: str) -> None:
    """An event that is written again to another topic of the same outbox is the same event."""
    send(bench, bench.topic, [b"1", b"2"])
    send(bench, other, [b"2", b"3"], first=2)
    scope = {bench.topic: "shop", other: "shop"}
    with running(bench.applying(topics=[bench.topic, other], id_scope=scope)) as app:
        until(lambda: handled(app) == 4)
    assert sorted(bench.effects()) == [1, 2, 3]


def test_two_sources_of_a_durable_inbox_are_told_apart(bench: Bench, other: str) -> None:
    with psycopg.connect(bench.dsn, autocommit=True) as conn:
        apply(conn, steps())
    kafka = {"bootstrap.servers": bench.server.kafka}
    durable = DurableInbox("billing", kafka=kafka, topics=[bench.topic, other], dsn=bench.dsn)

    @durable.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        write_effect(conn, event)

    send(bench, bench.topic, [b"1", b"2", b"null"])
    send(bench, other, [b"1", b"2", b"null"], first=11)
    assert durable._receiver is not None
    with running(durable._receiver) as receiver:
        until(lambda: handled(receiver) == 6)
    with psycopg.connect(bench.dsn, autocommit=True) as conn:
        jobs = conn.execute("SELECT topic, event_id FROM inbox_job ORDER BY position").fetchall()
    assert len(jobs) == 6
    assert (bench.topic, UUID(bytes=scoped_id(bench.topic, b"1"))) in jobs


def test_numbers_that_start_again_are_noticed(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    send(bench, bench.topic, [b"7", b"8", b"9", b"1", b"2", b"10"])
    with caplog.at_level(logging.WARNING), running(bench.applying()) as app:
        until(lambda: handled(app) == 6)
    assert app.counters.falling_ids == 2
    (line,) = [r.message for r in caplog.records if "started again" in r.message]
    assert line.startswith(f"record {bench.topic}/0/3 has the id 1 after 9:")
    assert "id_scope" in line


def test_redelivered_numbers_have_not_started_again(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A batch that fails is read again; its numbers are no lower than before."""
    app = bench.app()

    @app.handler("Placed", on_failure="dead_letter")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        if event.data["n"] == 3:
            raise Reject("never")

    send(bench, bench.topic, [b"1", b"2", b"3", b"4"])
    with caplog.at_level(logging.WARNING), running(app):
        until(lambda: handled(app) == 4)
    assert app.counters.falling_ids == 0


@pytest.mark.parametrize("text", [b"", None, b" ", NIL, NIL.replace(b"-", b""), b"null", b"NULL"])
def test_an_id_that_identifies_nothing_is_no_id(
    bench: Bench, caplog: pytest.LogCaptureFixture, text: bytes | None
) -> None:
    send(bench, bench.topic, [text, text, text])
    with caplog.at_level(logging.WARNING), running(bench.applying()) as app:
        until(lambda: handled(app) == 3)
    assert bench.effects() == [1, 2, 3]
    assert app.counters.without_id == 3
    assert len([r for r in caplog.records if "has no id (header id)" in r.message]) == 1


def test_an_event_handled_before_the_upgrade_is_recognised(bench: Bench, other: str) -> None:
    """The topic whose events are in the inbox is named; numbers of the other service are its own."""
    keep_as_before(bench, b"1", b"2")
    send(bench, bench.topic, [b"1", b"2", b"3"])
    send(bench, other, [b"1", b"2", b"3"], first=11)
    app = bench.applying(topics=[bench.topic, other], unscoped_ids=[bench.topic])
    with running(app):
        until(lambda: handled(app) == 6)
    assert sorted(bench.effects()) == [3, 11, 12, 13]
    assert app.counters.duplicates == 2


def test_an_event_recognised_once_needs_its_old_id_no_longer(bench: Bench) -> None:
    keep_as_before(bench, b"1")
    send(bench, bench.topic, [b"1"])
    with running(bench.applying(unscoped_ids=["^" + bench.topic])) as app:
        until(lambda: handled(app) == 1)
    rows = bench.query("SELECT event_id FROM inbox WHERE consumer = 'billing'")
    assert (UUID(bytes=scoped_id(bench.topic, b"1")),) in rows


def test_an_undeclared_upgrade_stops_before_it_repeats_or_loses_an_event(bench: Bench) -> None:
    keep_as_before(bench, b"2")
    send(bench, bench.topic, [b"1", b"2", b"3"])
    with pytest.raises(UndeclaredIds) as caught:
        bench.applying().run()
    assert (bench.effects(), offset(bench, bench.topic)) == ([], 0)
    assert f"'2' of record {bench.topic}/0/1" in str(caught.value)
    remedy = f'unscoped_ids=["{bench.topic}"]'
    assert remedy in str(caught.value)
    with running(bench.applying(unscoped_ids=[bench.topic])) as app:
        until(lambda: handled(app) == 3)
    assert bench.effects() == [1, 3]


def test_without_events_of_before_nothing_has_to_be_declared(bench: Bench) -> None:
    keep_as_before(bench, b"1")
    send(bench, bench.topic, [b"1", b"2"])
    with running(bench.applying(unscoped_ids=())) as app:
        until(lambda: handled(app) == 2)
    assert bench.effects() == [1, 2]


def test_the_loop_of_ones_own_tells_sources_apart_too(bench: Bench, other: str) -> None:
    keep_as_before(bench, b"1")
    send(bench, bench.topic, [b"1", b"2", b"null", b"null"])
    send(bench, other, [b"1", b"2"], first=11)
    app = bench.app(topics=[bench.topic, other], unscoped_ids=[bench.topic])
    with app.batches() as batches:
        for batch in batches:
            with batch.transaction() as (conn, events):
                for event in events:
                    write_effect(conn, event)
            if handled(app) == 6:
                app.stop()
    assert sorted(bench.effects()) == [2, 3, 4, 11, 12]
    assert app.counters.without_id == 2


def test_a_redriven_dead_letter_keeps_its_id(bench: Bench) -> None:
    """It is kept in the table: what would be derived today does not matter."""
    ids: list[UUID] = []
    mended: list[bool] = []
    app = bench.app(id_scope="shop")

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        ids.append(event.id)
        if not mended:
            raise Reject("not today")

    send(bench, bench.topic, [b"17"])
    with running(app):
        until(lambda: app.counters.dead_letters == 1)
    mended.append(True)
    again = bench.app()  # another scope
    again._routes = app._routes
    with bench.database.connect() as conn:
        (letter,) = dead_letter.find(conn, dead_letter.DeadLetterFilter(), "inbox")
        dead_letter.redrive(conn, [letter["position"]], "inbox", rate=0)
    with running(again):
        until(lambda: again.counters.unparked == 1)
    assert set(ids) == {UUID(bytes=scoped_id("shop", b"17"))} == {letter["event_id"]}


@pytest.mark.parametrize("text", [b"17", None])
def test_a_dead_letter_sent_again_from_its_topic_keeps_its_id(bench: Bench, text: bytes | None) -> None:
    letters = create_topic(bench.server, f"{bench.topic}.dead")
    app = bench.app(dead_letter=letters)

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        raise Reject("never")

    send(bench, bench.topic, [text])
    with running(app):
        until(lambda: app.counters.dead_letters == 1)
    replayed = bench.applying(topics=[letters])
    with running(replayed):
        until(lambda: handled(replayed) == 1)
    assert (replayed.counters.duplicates, bench.effects()) == (1, [])


def test_claim_knows_scopes_and_the_upgrade_to_them(bench: Bench) -> None:
    with bench.database.connect() as conn:
        conn.autocommit = False
        assert claim(conn, "billing", ["1", "2"]) == {"1", "2"}  # as before
        for scope, fresh in (("orders", {"3"}), ("refunds", set[str]())):
            wanted = ["1", "2", "3"]
            assert claim(conn, "billing", wanted) & claim(conn, "billing", wanted, scope=scope) == fresh
        assert claim(conn, "billing", ["1", "3"], scope="orders") == set()
        assert claim(conn, "billing", ["1"], scope="returns") == {"1"}


@pytest.mark.parametrize("nothing", ["", " ", "null", NIL.decode(), UUID(int=0)])
def test_claim_refuses_an_id_that_identifies_nothing(bench: Bench, nothing: Any) -> None:
    with (
        bench.database.connect() as conn,
        conn.transaction(),
        pytest.raises(UsageError, match="identifies noth"),
    ):
        claim(conn, "billing", [nothing])


def test_a_job_with_the_nil_uuid_is_refused(bench: Bench) -> None:
    durable = DurableInbox("billing", dsn=bench.dsn)
    with bench.database.connect() as conn, pytest.raises(UsageError, match="nil UUID"):
        durable.put(conn, "Placed", id=UUID(int=0))
