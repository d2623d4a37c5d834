"""Handlers are checked when they are registered, applications when they are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from outbox_consumers import Consumer, Event
from outbox_consumers.application import load
from outbox_consumers.errors import UsageError
from outbox_consumers.handlers.connection import ends_transaction
from outbox_consumers.inbox.claims import PackedIds, first_occurrences


def app() -> Consumer:
    return Consumer("billing", kafka={"bootstrap.servers": "h:1"}, topics=["t"], dsn="password=secret")


def test_a_handler_stays_the_function_it_was() -> None:
    def placed(conn: psycopg.Connection[Any], event: Event) -> str:
        return event.key

    assert app().handler("Placed")(placed) is placed


@pytest.mark.parametrize(
    "function", [lambda: None, lambda conn: None, lambda conn, event, more: None, lambda *, conn, event: None]
)
def test_a_handler_with_a_wrong_signature_is_refused_at_once(function: Any) -> None:
    with pytest.raises(UsageError, match="two arguments"):
        app().handler("Placed")(function)
    with pytest.raises(UsageError, match="events"):
        app().batch_handler("Placed")(function)


def test_an_asynchronous_handler_has_no_cursor_of_another_kind() -> None:
    async def placed(cursor: object, event: Event) -> None: ...

    with pytest.raises(UsageError, match="not asynchronous"):
        app().handler("Placed", cursor=True)(placed)


def test_two_handlers_of_one_type() -> None:
    consumer = app()
    consumer.handler("Placed")(lambda conn, event: None)
    with pytest.raises(UsageError, match="two handlers for Placed"):
        consumer.batch_handler("Placed")(lambda conn, events: None)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": ""}, "needs a name"),
        ({"topics": "orders"}, "list of topic names"),
        ({"topics": []}, "list of topic names"),
        ({"batch_size": 0}, "at least one event"),
    ],
)
def test_a_consumer_with_invalid_settings_is_refused(settings: dict[str, Any], words: str) -> None:
    given = {"name": "billing", "topics": ["t"]} | settings
    with pytest.raises(UsageError, match=words):
        Consumer(given.pop("name"), kafka={"bootstrap.servers": "h:1"}, **given)
    with pytest.raises(UsageError, match="max_size=0"):
        app().batch_handler("A", max_size=0)(lambda conn, events: None)


def test_no_secret_shows() -> None:
    consumer = app()
    assert "secret" not in repr(consumer) + repr(vars(consumer))


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("json", "is not module:attribute"),
        (":app", "is not module:attribute"),
        ("nowhere_at_all:app", "no module named nowhere_at_all"),
        ("needy_app:app", "needs a_package_nobody_has"),
        ("broken_app:app", "cannot be imported: ZeroDivisionError"),
        ("good_app:nothing", "the applications in it are good_app:app"),
        ("good_app:number", "is a int, neither a Consumer nor a DurableInbox"),
        ("json:dumps", "json has no Consumer"),
    ],
)
def test_a_reference_that_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, words: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "needy_app.py").write_text("import a_package_nobody_has\n")
    (tmp_path / "broken_app.py").write_text("1 / 0\n")
    (tmp_path / "good_app.py").write_text(
        "from outbox_consumers import Consumer\nnumber = 1\n"
        'app = Consumer("x", kafka={"bootstrap.servers": "h:1"}, topics=["t"])\n'
    )
    with pytest.raises(UsageError) as caught:
        load(reference)
    assert words in str(caught.value)
    assert load("good_app:app").name == "x"


@pytest.mark.parametrize(
    ("statement", "ends"),
    [
        ("COMMIT", True),
        ("  commit;", True),
        (b"Rollback", True),
        ("END", True),
        ("abort work", True),
        ("COMMIT AND CHAIN", True),
        ("PREPARE TRANSACTION 'x'", True),
        (psycopg.sql.SQL("commit"), True),
        ("ROLLBACK TO SAVEPOINT a", False),
        ("PREPARE q AS SELECT 1", False),
        ("INSERT INTO commit VALUES (1)", False),
        ("", False),
        (psycopg.sql.Identifier("commit"), False),
    ],
)
def test_statements_that_would_end_the_transaction(statement: Any, ends: bool) -> None:
    assert ends_transaction(statement) is ends


def test_packed_ids_are_a_binary_uuid_array() -> None:
    assert PackedIds.of([b"a" * 16, b"b" * 16]).hex() == (
        "00000001" "00000000" "00000b86" "00000002" "00000001"
        "00000010" + "61" * 16 + "00000010" + "62" * 16
    )  # fmt: skip
    assert len(PackedIds.of([])) == 12


def test_of_an_id_that_a_batch_holds_twice_the_first_is_kept() -> None:
    events = [Event("A", n, offset=n % 3) for n in range(6)]
    kept = first_occurrences(events, {events[0].packed_id, events[2].packed_id})
    assert kept == [events[0], events[2]]
