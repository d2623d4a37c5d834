"""What a consumer says before it begins, when it could not keep its promise here."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fix_consumer import Bench, running, write_effect
from outbox_connectors.errors import ExitCode, OutboxError
from outbox_consumers import Consumer
from outbox_consumers.errors import Failed, InboxUnusable, ReadOnlyDatabase, Unreachable, UsageError
from waiting import until

pytestmark = pytest.mark.stack


def refusal(app: Consumer, kind: type[OutboxError]) -> str:
    with pytest.raises(kind) as caught:
        app.run()
    return str(caught.value)


def test_a_missing_inbox_names_the_command_that_makes_one(bench: Bench) -> None:
    bench.run("DROP TABLE inbox")
    assert refusal(bench.applying(), InboxUnusable) == "there is no table inbox; run outboxctl inbox init"


def test_an_inbox_with_another_definition(bench: Bench) -> None:
    bench.run("DROP TABLE inbox; CREATE TABLE inbox (event_id uuid PRIMARY KEY, consumer text)")
    assert "has the primary key (event_id), an inbox has (event_id, consumer)" in refusal(
        bench.applying(), InboxUnusable
    )


def test_an_inbox_without_rights(bench: Bench) -> None:
    role = f"r_{uuid.uuid4().hex[:8]}"
    bench.run(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    try:
        dsn = bench.server.conninfo(bench.database.name, user=role, password="x")
        text = refusal(bench.applying(dsn=dsn), InboxUnusable)
        assert text == (
            "missing rights on inbox, inbox_dead_letter, inbox_parked, inbox_journal, inbox_member, "
            "inbox_attempt: SELECT, INSERT, UPDATE and DELETE are needed; "
            "run outboxctl inbox init --grant <this role>"
        )
    finally:
        bench.run(f"DROP ROLE {role}")


def test_a_read_only_session(bench: Bench) -> None:
    dsn = bench.dsn + " options='-c default_transaction_read_only=on'"
    assert "target_session_attrs=read-write" in refusal(bench.applying(dsn=dsn), ReadOnlyDatabase)


def test_synchronous_commit_off_is_turned_on_for_this_session(bench: Bench) -> None:
    """With it off, a crash could lose effects whose offsets are already committed."""
    seen: list[str] = []
    app = bench.app(dsn=bench.dsn + " options='-c synchronous_commit=off'")

    @app.handler("Placed", pipeline=False)
    def placed(conn: psycopg.Connection[Any], event: Any) -> None:
        for name in ("synchronous_commit", "lock_timeout", "idle_in_transaction_session_timeout"):
            row = conn.execute("SELECT current_setting(%s)", (name,)).fetchone()
            seen.append(row[0] if row else "")
        write_effect(conn, event)

    bench.send_many(1)
    with running(app):
        until(lambda: app.counters.processed == 1)
    assert seen == ["on", "10s", "1min"]


def test_an_unreachable_database(bench: Bench) -> None:
    app = bench.applying(dsn="host=127.0.0.1 port=1 dbname=x password=secret")
    text = refusal(app, Unreachable)
    assert "onnection refused" in text
    assert "secret" not in text + repr(app) + repr(app._database)


def test_a_wrong_password(bench: Bench) -> None:
    dsn = bench.server.conninfo(bench.database.name, password="wrong")
    text = refusal(bench.applying(dsn=dsn), Unreachable)
    assert "password authentication failed" in text
    assert "\n" not in text


def test_an_invalid_dsn() -> None:
    app = Consumer("x", kafka={"bootstrap.servers": "h:1"}, topics=["t"], dsn="not a dsn")
    app.handler("A")(lambda conn, event: None)
    assert "connection string" in refusal(app, UsageError)


def test_an_unreachable_broker(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    app = bench.applying(kafka={"bootstrap.servers": "127.0.0.1:1"})
    monkeypatch.setattr("outbox_consumers.loop.group_member.OPEN_SECONDS", 0.5)
    text = refusal(app, Unreachable)
    assert text.startswith("Kafka at 127.0.0.1:1: ")


def test_a_topic_that_is_not_there(bench: Bench) -> None:
    text = refusal(bench.applying(topics=[bench.topic, "no.such.topic"]), Failed)
    assert "no such topic: no.such.topic" in text


def test_a_property_that_the_client_does_not_know(bench: Bench) -> None:
    text = refusal(bench.applying(kafka={"sesion.timeout": 1}), Failed)
    assert "sesion.timeout" in text


def test_no_handlers(bench: Bench) -> None:
    assert "has no handlers" in refusal(bench.app(), UsageError)


@pytest.mark.parametrize(
    ("reference", "code", "words"),
    [
        ("nowhere:app", ExitCode.USAGE, "no module named nowhere"),
        ("refused:app", ExitCode.USAGE, "enable.auto.commit=False: offsets are stored"),
        ("good:app", ExitCode.UNREACHABLE, "refused"),
    ],
)
def test_the_command_says_what_is_wrong_in_one_line(
    tmp_path: Path, reference: str, code: int, words: str
) -> None:
    text = """
from outbox_consumers import Consumer
app = Consumer("x", kafka={"bootstrap.servers": "h:1"}, topics=["t"], dsn="host=127.0.0.1 port=1")

@app.handler("A")
def a(conn, event): ...
"""
    (tmp_path / "good.py").write_text(text)
    (tmp_path / "refused.py").write_text(text.replace('"h:1"', '"h:1", "enable.auto.commit": False'))
    command = [str(Path(sys.executable).parent / "outboxctl"), "consume", reference]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
