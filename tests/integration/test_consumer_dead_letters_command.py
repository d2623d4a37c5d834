"""`outboxctl dead-letters`: list, show, redrive, discard, with filters and without surprises."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from fix_consumer import Bench, running
from outbox_consumers import Event, Reject
from outbox_consumers.failures.dead_letter import (
    DeadLetterLimit,
    DeadLetterLimiter,
    DeadLetters,
    FailureHistory,
)
from outbox_consumers.inbox.claims import cursor_of
from outbox_consumers.processes.counters import ConsumerCounters
from outbox_pipeline.cli import main
from waiting import until

pytestmark = pytest.mark.stack


class Letters:
    """Runs the command on a bench and gives what it printed."""

    def __init__(self, bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
        self._bench = bench
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as caught:
            main(["dead-letters", *arguments, "--dsn", self._bench.dsn])
        captured = self._capsys.readouterr()
        assert caught.value.code == code, captured.err
        return captured.out if code == 0 else captured.err

    def ids(self, *filters: str) -> list[str]:
        return [letter["event_id"] for letter in json.loads(self("list", "--json", *filters))]


@pytest.fixture
def letters(bench: Bench, capsys: pytest.CaptureFixture[str]) -> Letters:
    return Letters(bench, capsys)


def add_letter(bench: Bench, **event: Any) -> str:
    consumer = event.pop("consumer", "billing")
    error = Reject(event.pop("error", "never"))
    made = Event(event.pop("type", "Placed"), {"n": 1}, id=uuid.uuid4(), **event)
    with bench.database.connect() as conn:
        dead_letters = DeadLetters(
            consumer, "inbox", DeadLetterLimiter(DeadLetterLimit()), None, ConsumerCounters()
        )
        dead_letters.add(cursor_of(conn), made, FailureHistory(3), error)
    return str(made.id)


def test_filters_select_exactly_the_matching_letters(bench: Bench, letters: Letters) -> None:
    one = add_letter(bench, key="a", error="timeout of the bank")
    two = add_letter(bench, key="b", type="Paid")
    three = add_letter(bench, key="a", consumer="shipping")
    assert letters.ids() == [one, two, three]
    assert letters.ids("--consumer", "billing") == [one, two]
    assert letters.ids("--type", "Paid") == [two]
    assert letters.ids("--key", "a") == [one, three]
    assert letters.ids("--error", "the bank") == [one]
    assert letters.ids("--id", two) == [two]
    assert letters.ids("--max", "1") == [one]
    assert letters.ids("--since", "2999-01-01") == []


def test_show_prints_origin_and_error(bench: Bench, letters: Letters) -> None:
    add_letter(bench, key="order-1", topic="outbox.event.order", offset=7)
    text = letters("show")
    for words in ("outbox.event.order/0/7", "order-1", "Reject: never", '{"n": 1}', "event_type: Placed"):
        assert words in text
    assert "Reject: never" in letters("list")


def test_discard_asks_for_confirmation_or_needs_an_option(bench: Bench, letters: Letters) -> None:
    one, two = add_letter(bench), add_letter(bench)
    assert "1 dead letters would be discarded" in letters("discard", "--id", one, "--dry-run")
    assert letters.ids() == [one, two]
    assert json.loads(letters("discard", "--id", one, "--yes", "--json")) == {
        "discarded": [one],
        "applied": True,
    }
    assert letters.ids() == [two]


def test_a_redriven_letter_is_handled_by_the_running_consumer(bench: Bench, letters: Letters) -> None:
    event_id = add_letter(bench, key="k")
    bench.sent.append(uuid.UUID(event_id))
    with running(bench.applying()) as app:
        assert "1 dead letters would be redriven" in letters("redrive", "--dry-run")
        assert letters("redrive") == "1 dead letters redriven\n"
        until(lambda: app.counters.unparked == 1)
    bench.applied_once()
    assert letters.ids() == []


def test_refusals_are_one_line(bench: Bench, letters: Letters) -> None:
    assert "not an ISO 8601 time" in letters("list", "--since", "yesterday", code=2)
    assert "outboxctl inbox init" in letters("list", "--table", "nowhere", code=1)
