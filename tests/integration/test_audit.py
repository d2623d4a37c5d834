"""`outboxctl audit` says by ids what is missing, doubled or unknown, and where."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from confluent_kafka import Producer

from fix_relay import NewRelayed, Relayed
from outbox_connectors.errors import ExitCode

pytestmark = pytest.mark.stack


def audit(relayed: Relayed, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = relayed.outboxctl("--json", "audit", "--settle", "1", *arguments)
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document


def test_the_books_of_an_outbox_with_a_history(new_relayed: NewRelayed) -> None:
    relayed = new_relayed(archive=True)
    relayed.write(2000)
    relayed.until_empty("--mode", "archive")
    code, books = audit(relayed)
    assert code == ExitCode.OK
    assert (books["written"], books["delivered"], books["missing"]) == (2000, 2000, [])
    known = relayed.written.copy()
    relayed.write(3)
    code, books = audit(relayed)
    assert code == ExitCode.CRITICAL
    assert set(books["missing"]) == relayed.written.keys() - known.keys()
    assert (books["duplicated"], books["unexpected"]) == (0, 0)
    produce(relayed, next(iter(known)), str(uuid.uuid4()))
    code, books = audit(relayed)
    assert (books["duplicated"], books["unexpected"]) == (1, 1)
    assert audit(relayed, "--since", "2999-01-01T00:00:00Z")[1]["written"] == 0


def test_what_a_consumer_has_not_applied(new_relayed: NewRelayed) -> None:
    relayed = new_relayed(archive=True)
    relayed.write(100)
    relayed.until_empty("--mode", "archive")
    with relayed.connect() as conn:
        conn.execute("CREATE TABLE inbox (event_id uuid, consumer text)")
        conn.execute("INSERT INTO inbox SELECT id, 'billing' FROM outbox_history LIMIT 98")
    where = ("--inbox", relayed.site.database.conninfo, "--consumer")
    code, books = audit(relayed, *where, "billing")
    assert code == ExitCode.CRITICAL
    assert (books["applied"], books["unapplied_count"], len(books["unapplied"])) == (98, 2, 2)
    code, books = audit(relayed, *where, "nobody")
    assert (books["applied"], books["unapplied_count"]) == (0, 100)
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
