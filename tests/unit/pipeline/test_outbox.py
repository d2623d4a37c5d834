"""Events and statements as values: ids, parameter styles, what is refused before a database is needed."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from uuid import UUID

import pytest

from outbox_connectors.definition import TableName
from outbox_connectors.record import Json
from outbox_pipeline import outbox
from outbox_pipeline.errors import EventError, UsageError

ID = UUID("01a2298c-83fe-7433-9df3-79db46703dab")
WHEN = datetime(2026, 11, 29, 12, 0, 0, 123, tzinfo=UTC)


def placed(payload: Json | bytes = None) -> outbox.Event:
    return outbox.event(
        aggregate_type="order",
        aggregate_id="42",
        event_type="OrderPlaced",
        payload=payload,
        event_id=ID,
        occurred_at=WHEN,
    )


def test_ids_are_version_7_and_grow() -> None:
    ids = [outbox.new_id() for _ in range(20_000)]
    assert all(earlier < later for earlier, later in pairwise(ids))
    assert {id.version for id in ids} == {7}


def test_ids_of_threads_grow_and_never_meet() -> None:
    made: list[list[UUID]] = []

    def work() -> None:
        made.append([outbox.new_id() for _ in range(5_000)])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(earlier < later for ids in made for earlier, later in pairwise(ids))
    assert len({id for ids in made for id in ids}) == 40_000


def test_an_id_made_after_another_thread_made_one_is_greater() -> None:
    """Within the process, not only within the thread."""
    seen = [outbox.new_id()]
    for _ in range(50):
        thread = threading.Thread(target=lambda: seen.append(outbox.new_id()))
        thread.start()
        thread.join()
        seen.append(outbox.new_id())
    assert all(earlier < later for earlier, later in pairwise(seen))


def test_forked_children_never_make_the_same_id() -> None:
    """A fork copies the generator's state; without a new seed two children could count alike."""
    code = """
import os, sys
from outbox_pipeline import outbox
outbox.new_id()
children = []
for _ in range(4):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        with os.fdopen(write, "w") as pipe:
            pipe.write(" ".join(str(outbox.new_id()) for _ in range(1000)))
        os._exit(0)
    os.close(write)
    children.append((pid, read))
for pid, read in children:
    with os.fdopen(read) as pipe:
        print(pipe.read())
    os.waitpid(pid, 0)
print(*(outbox.new_id() for _ in range(1000)))
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    ids = run.stdout.split()
    assert len(ids) == len(set(ids)) == 5000


def test_event_fills_in_an_id_and_the_time_of_now() -> None:
    before = datetime.now(UTC)
    event = outbox.event(aggregate_type="order", aggregate_id="1", event_type="OrderPlaced", payload={})
    assert event.id.version == 7
    assert before <= event.occurred_at <= datetime.now(UTC)
    assert event.traceparent is None


@pytest.mark.parametrize("function", [outbox.event, outbox.add, outbox.add_async])
def test_help_shows_every_field_with_its_default(function: Callable[..., object]) -> None:
    shown = inspect.signature(function).parameters
    required = ["aggregate_type", "aggregate_id", "event_type", "payload"]
    nothing = ("headers", "correlation_id", "causation_id", "traceparent", "event_id", "occurred_at")
    assert [name for name in shown if name in required] == required
    assert all(shown[name].default is inspect.Parameter.empty for name in required)
    assert shown["event_version"].default == 1
    assert all(shown[name].default is None for name in nothing)
    assert all(one.kind is one.KEYWORD_ONLY for name, one in shown.items() if name != "conn")


@pytest.mark.parametrize(
    ("style", "placeholders"),
    [
        ("format", ["CAST(%s AS uuid)", "CAST(%s AS timestamptz)"]),
        ("qmark", ["CAST(? AS uuid)", "CAST(? AS timestamptz)"]),
        ("numeric", ["CAST(:1 AS uuid)", "CAST(:7 AS timestamptz)"]),
        ("numeric_dollar", ["CAST($1 AS uuid)", "CAST($7 AS timestamptz)"]),
    ],
)
def test_statement_numbers_its_parameters(style: str, placeholders: list[str]) -> None:
    text, values = outbox.statement(placed({"total": 99}), style)  # type: ignore[call-overload] # any str
    assert all(placeholder in text for placeholder in placeholders)
    assert values[:7] == (str(ID), "order", "42", "OrderPlaced", 1, '{"total": 99}', WHEN)
    assert "%(" not in text
    assert text.startswith('INSERT INTO "public"."outbox" (')


def test_statement_names_its_parameters() -> None:
    named, values = outbox.statement(placed({"total": 99}), "named")
    assert "CAST(:id AS uuid)" in named
    assert values["payload"] == '{"total": 99}'
    pyformat, same = outbox.statement(placed({"total": 99}))
    assert "CAST(%(id)s AS uuid)" in pyformat
    assert values == same


def test_statement_of_an_unknown_style() -> None:
    with pytest.raises(UsageError, match="'shell' is no parameter style; use pyformat, format"):
        outbox.statement(placed(), "shell")  # type: ignore[call-overload] # what a user without mypy writes


def test_statement_follows_the_payload() -> None:
    """NULL cast to jsonb does not fit a bytea column, so a tombstone has a statement without the cast."""
    json_text, _ = outbox.statement(placed([1]))
    bytes_text, values = outbox.statement(placed(b"\x00"), "format")
    tombstone, nothing = outbox.statement(placed(None))
    assert "AS jsonb), CAST(%(occurred_at)s" in json_text
    assert "CAST(%s AS bytea)" in bytes_text
    assert b"\x00" in values
    assert "NULL" in tombstone
    assert "payload" not in nothing


@pytest.mark.parametrize(
    ("table", "quoted"),
    [
        ("outbox", '"outbox"'),
        ("shop.outbox", '"shop"."outbox"'),
        (TableName("Shop", 'odd."name'), '"Shop"."odd.""name"'),
    ],
)
def test_statement_quotes_the_table(table: str | TableName, quoted: str) -> None:
    assert outbox.statement(placed(), table=table)[0].startswith(f"INSERT INTO {quoted} (")


def test_statement_doubles_percent_signs_of_the_table_for_percent_styles() -> None:
    table = TableName("public", "100%s")
    assert '"100%%s"' in outbox.statement(placed(), "format", table=table)[0]
    assert '"100%s"' in outbox.statement(placed(), "qmark", table=table)[0]


@pytest.mark.parametrize("table", ["", "a.b.c", "a.", ".b"])
def test_statement_refuses_what_is_no_table_name(table: str) -> None:
    with pytest.raises(UsageError, match="is no table name"):
        outbox.statement(placed(), table=table)


def test_statement_refuses_what_could_never_be_delivered() -> None:
    with pytest.raises(EventError, match="NaN"):
        outbox.statement(placed({"total": float("nan")}))
    with pytest.raises(ValueError, match="NUL"):
        outbox.statement(placed("\0"))


def test_importing_the_writer_needs_no_server_and_no_environment() -> None:
    environment = {"PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", "from outbox_pipeline import outbox; print(outbox.new_id())"]
    assert subprocess.run(command, check=True, capture_output=True, env=environment).stdout
