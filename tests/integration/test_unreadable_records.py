"""Records that a stranger wrote, with a header name that is no UTF-8, end neither audit nor tail."""

from __future__ import annotations

import json

import pytest

from fix_relay import NewRelayed
from outbox_pipeline.operations import audit
from outbox_pipeline.relay import Mode
from raw_records import NOT_UTF8, RawRecord, write_raw

pytestmark = pytest.mark.stack


def test_audit_and_tail_go_on(new_relayed: NewRelayed) -> None:
    relayed = new_relayed(archive=True)
    relayed.write(20)
    relayed.carry(Mode.ARCHIVE)
    topic = relayed.definition.kafka.topic_of("order")
    strange = RawRecord(b"{}", b"k", [(b"id", b"1"), (NOT_UTF8, b"x")])
    odd = RawRecord(b'"\\ud800"', b"k", [(b"id", b"\xff")])
    write_raw(relayed.definition.kafka.client["bootstrap.servers"], topic, [strange, odd, strange])
    with relayed.site.admin() as conn:
        books = audit.audit(conn, relayed.definition, settle_seconds=0)
    assert (books.written, books.delivered, books.missing, books.unexpected) == (20, 20, 0, 0)
    done = relayed.outboxctl(
        "--json", "tail", "--aggregate", "order", "--from-beginning", "--max", "23", "--timeout", "60"
    )
    assert done.returncode == 0, done.stderr
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    notes = [one["note"] for one in shown if "note" in one]
    assert notes == ["headers unreadable: a name is not UTF-8"] * 2
    done = relayed.outboxctl(
        "tail", "--aggregate", "order", "--from-beginning", "--max", "23", "--timeout", "60"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("(headers unreadable: a name is not UTF-8)") == 2
