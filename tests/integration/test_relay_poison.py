"""Rows that can never be published go aside with their cause, and hold up nobody but their aggregate."""

from __future__ import annotations

import json
import random

import pytest

from fix_relay import NewRelayed, Relayed
from outbox_connectors.record import Event
from outbox_pipeline import outbox
from outbox_pipeline.servers import topics

pytestmark = pytest.mark.stack

SMALL = {"defaults": {"config": {"max.message.bytes": "2000"}}}


def large(key: str, size: int = 5000) -> Event:
    noise = random.Random(key).randbytes(size // 2).hex()
    return outbox.event(
        aggregate_type="order", aggregate_id=key, event_type="Large", payload={"noise": noise}
    )


def insert(relayed: Relayed, *events: Event) -> None:
    with relayed.connect() as conn, conn.transaction():
        outbox.add_many(conn, events)


def dead_letters(relayed: Relayed) -> dict[str, tuple[str, int, bool]]:
    with relayed.connect() as conn:
        found = conn.execute("SELECT id::text, cause, attempts, blocks FROM public.outbox_dead_letter")
        return {event_id: (cause, attempts, blocks) for event_id, cause, attempts, blocks in found}


@pytest.mark.parametrize("client", [{}, {"compression.type": "lz4"}], ids=["measured", "found by halves"])
def test_a_record_over_the_limit_of_its_topic(new_relayed: NewRelayed, client: dict[str, str]) -> None:
    relayed = new_relayed(kafka={**SMALL, "client": client})
    relayed.write(400, keys=7)
    poison = [large("k3"), large("k5"), large("lonely")]
    insert(relayed, *poison)
    relayed.write(400, keys=7)
    counters = relayed.until_empty()
    assert counters["dead_letters"] == 3
    found = dead_letters(relayed)
    assert found.keys() == {str(event.id) for event in poison}
    for cause, attempts, blocks in found.values():
        assert "large" in cause.lower() or "max.message.bytes" in cause
        assert attempts >= 1
        assert blocks
    waiting = sum(
        1 for key, number in relayed.written.values() if key in ("order k3", "order k5") and number > 57
    )
    assert relayed.left() == waiting, relayed.rows_left()
    ledger = relayed.ledger()
    assert ledger.missing == relayed.left()  # only the later events of the two aggregates
    assert (ledger.duplicated, ledger.unexpected, ledger.out_of_order) == (0, 0, 0)


def test_skip_goes_on_without_the_row(new_relayed: NewRelayed) -> None:
    relayed = new_relayed(kafka=SMALL)
    relayed.write(100, keys=7)
    insert(relayed, large("k3"))
    relayed.write(100, keys=7)
    assert relayed.until_empty("--on-poison", "skip")["dead_letters"] == 1
    assert relayed.left() == 0
    assert relayed.ledger().clean


def test_stop_ends_the_relay_and_moves_nothing(new_relayed: NewRelayed) -> None:
    relayed = new_relayed(kafka=SMALL)
    poison = large("k3")
    insert(relayed, poison)
    done = relayed.outboxctl("relay", "--until-empty", "--on-poison", "stop")
    assert done.returncode == 1
    assert str(poison.id) in done.stderr
    assert "can never be published" in done.stderr
    assert relayed.left() == 1
    assert dead_letters(relayed) == {}


def test_without_transactions_a_refused_row_goes_aside_too(new_relayed: NewRelayed) -> None:
    relayed = new_relayed(kafka={**SMALL, "client": {"compression.type": "lz4"}})
    relayed.write(60, keys=7)
    insert(relayed, large("lonely"))
    relayed.write(60, keys=7)
    assert relayed.until_empty("--transactions", "off")["dead_letters"] == 1
    ledger = relayed.ledger()
    assert ledger.missing == 0
    assert ledger.unexpected == 0


def test_a_row_without_a_key_that_slipped_in(relayed: Relayed) -> None:
    relayed.write(50)
    with relayed.connect() as conn:
        conn.execute("ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL")
        conn.execute(
            "INSERT INTO outbox (id, aggregate_type, event_type, event_version, occurred_at)"
            " VALUES (gen_random_uuid(), 'order', 'Broken', 1, now())"
        )
    relayed.write(50)
    relayed.until_empty()
    assert relayed.left() == 0
    assert [cause for cause, _, _ in dead_letters(relayed).values()] == ["aggregate_id is NULL"]
    assert relayed.ledger().clean


def test_a_topic_that_cannot_be_created_holds_up_no_other(new_relayed: NewRelayed) -> None:
    relayed = new_relayed(kafka={"defaults": {"replication_factor": 1}})
    other = relayed.site.document
    assert other
    relayed.write(50)
    text = relayed.path.read_text()
    # From now on new topics need more brokers than there are.
    relayed.path.write_text(text.replace('"replication_factor": 1', '"replication_factor": 3'))
    relayed.write(20, aggregate_type="payment")
    relayed.write(50)
    done = relayed.outboxctl("relay", "--until-empty")
    assert done.returncode == 1
    assert "payment" in done.stderr
    assert relayed.left() == 20
    assert dead_letters(relayed) == {}
    relayed.path.write_text(text)
    relayed.until_empty()
    assert relayed.ledger().missing == 0


def test_dead_letters_go_back_to_their_places(new_relayed: NewRelayed) -> None:
    relayed = new_relayed(kafka=SMALL)
    relayed.write(14, keys=7)
    poison = large("k3")
    insert(relayed, poison)
    relayed.written[str(poison.id)] = ("order k3", 3)
    relayed.numbers["order k3"] += 1
    relayed.write(14, keys=7)
    relayed.until_empty()
    assert relayed.left() == 2
    listed = json.loads(relayed.outboxctl("--json", "dead-letters", "outbox", "list").stdout)
    assert [letter["id"] for letter in listed] == [str(poison.id)]
    topics.alter_config(
        relayed.definition.kafka, {f"{relayed.definition.pipeline}.order": {"max.message.bytes": "100000"}}
    )
    assert relayed.outboxctl("dead-letters", "outbox", "requeue").returncode == 2
    done = relayed.outboxctl("dead-letters", "outbox", "requeue", "--key", "k3")
    assert done.stdout.split() == [str(poison.id)]
    relayed.until_empty()
    assert relayed.left() == 0
    assert relayed.ledger().clean


def test_a_discarded_dead_letter_lets_its_aggregate_go_on(new_relayed: NewRelayed) -> None:
    relayed = new_relayed(kafka=SMALL)
    insert(relayed, large("k3"))
    relayed.write(14, keys=7)
    relayed.until_empty()
    assert relayed.left() == 2
    assert relayed.outboxctl("dead-letters", "outbox", "discard", "--all").returncode == 2
    assert relayed.outboxctl("dead-letters", "outbox", "discard", "--all", "--yes").returncode == 0
    relayed.until_empty()
    assert relayed.ledger().clean
