"""`outboxctl audit` says by ids what is missing, doubled or unknown, and where."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer

from fix_relay import NewRelayed, Relayed
from outbox_connectors.definition import TableName
from outbox_connectors.errors import ExitCode
from outbox_pipeline.ids import in_tables
from outbox_pipeline.operations import audit
from outbox_pipeline.operations.audit import AuditReport
from outbox_pipeline.relay import Mode

pytestmark = pytest.mark.stack


def audited(relayed: Relayed, *, since: datetime | None = None) -> AuditReport:
    with relayed.site.admin() as conn:
        return audit.audit(conn, relayed.definition, since=since, settle_seconds=0)


def test_the_books_of_an_outbox_with_a_history(new_relayed: NewRelayed) -> None:
    relayed = new_relayed(archive=True)
    relayed.write(2000)
    relayed.carry(Mode.ARCHIVE)
    books = audited(relayed)
    assert (books.written, books.delivered, books.missing) == (2000, 2000, 0)
    known = relayed.written.copy()
    relayed.write(3)
    done = relayed.outboxctl("--json", "audit", "--settle", "0")
    document = json.loads(done.stdout)
    assert done.returncode == ExitCode.CRITICAL
    assert set(document["missing"]) == relayed.written.keys() - known.keys()
    assert (document["duplicated"], document["unexpected"]) == (0, 0)
    produce(relayed, next(iter(known)), str(uuid.uuid4()))
    books = audited(relayed)
    assert (books.duplicated, books.unexpected) == (1, 1)
    assert audited(relayed, since=datetime(2999, 1, 1, tzinfo=UTC)).written == 0


def test_clocks_that_are_wrong_hide_nothing(new_relayed: NewRelayed) -> None:
    """Events that say they happened years ago, or will, are found on both sides or on none."""
    relayed = new_relayed(archive=True)
    relayed.write(60)
    with relayed.connect() as conn:
        for remainder, moment in enumerate(("1999-01-01", "2087-01-01", "2026-01-01")):
            conn.execute(
                "UPDATE outbox SET occurred_at = %s WHERE mod(position, 3) = %s", (moment, remainder)
            )
        conn.execute(  # ids of UUIDv7 from 1970
            "UPDATE outbox SET id = overlay(id::text placing '00000000-0000-7' from 1 for 15)::uuid"
            " WHERE mod(position, 2) = 0"
        )
    relayed.carry(Mode.ARCHIVE)
    for since, expected in ((None, 60), (2000, 40), (2050, 20), (2090, 0)):
        begin = None if since is None else datetime(since, 1, 1, tzinfo=UTC)
        books = audited(relayed, since=begin)
        assert (books.written, books.delivered, books.missing) == (expected, expected, 0)
        assert books.unexpected == 0
    with relayed.connect() as conn:
        conn.execute("UPDATE outbox_history SET id = gen_random_uuid() WHERE occurred_at > '2080-01-01'")
    books = audited(relayed, since=datetime(2050, 1, 1, tzinfo=UTC))
    assert (books.missing, books.unexpected) == (20, 20)


def test_an_outbox_of_many_pages_and_days(new_relayed: NewRelayed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are read in ranges of pages, of every partition."""
    monkeypatch.setattr(in_tables, "PAGES", 2)
    relayed = new_relayed(archive=True, outbox={"partition": "daily"})
    relayed.write(500)
    relayed.carry(Mode.ARCHIVE)
    relayed.write(400)
    with relayed.connect() as conn:
        conn.execute("UPDATE outbox SET occurred_at = now() + interval '1 day' WHERE mod(position, 2) = 0")
    books = audited(relayed)
    assert (books.written, books.delivered, books.missing) == (900, 500, 400)


def test_what_a_consumer_has_not_applied(new_relayed: NewRelayed) -> None:
    relayed = new_relayed(archive=True)
    relayed.write(100)
    relayed.carry(Mode.ARCHIVE)
    with relayed.connect() as conn:
        conn.execute("CREATE TABLE inbox (event_id uuid, consumer text)")
        conn.execute("INSERT INTO inbox SELECT id, 'billing' FROM outbox_history LIMIT 98")
    where = ("--inbox", relayed.site.database.conninfo, "--consumer")
    done = relayed.outboxctl("--json", "audit", "--settle", "0", *where, "billing")
    books = json.loads(done.stdout)
    assert done.returncode == ExitCode.CRITICAL
    assert (books["applied"], books["unapplied_count"], len(books["unapplied"])) == (98, 2, 2)
    with relayed.site.admin() as conn, relayed.connect() as far:
        inbox = audit.InboxTable(far, TableName("public", "inbox"), "nobody")
        found = audit.audit(conn, relayed.definition, inbox=inbox, settle_seconds=0)
    assert (found.applied, found.unapplied) == (0, 100)
    done = relayed.outboxctl("audit", "--inbox", relayed.site.database.conninfo, "--inbox-table", "nothing")
    assert done.returncode == ExitCode.FAILED
    assert "Traceback" not in done.stderr


def produce(relayed: Relayed, *event_ids: str) -> None:
    producer = Producer(dict(relayed.definition.kafka.client))
    topic = relayed.definition.kafka.topic_of("order")
    for event_id in event_ids:
        headers: list[tuple[str, str | bytes | None]] = [("id", event_id.encode()), ("event_type", b"x")]
        headers.append(("event_version", b"1"))
        headers.append(("occurred_at", b"2026-11-29T12:00:00.000000Z"))
        producer.produce(topic, b"{}", b"k", headers=headers)
    producer.flush(10)
