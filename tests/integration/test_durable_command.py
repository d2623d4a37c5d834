"""The command line for a durable inbox: run it, show its queue, redrive and discard its dead jobs."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from uuid_utils.compat import uuid7

from durable_lab import Lab, finish, new_inbox, running_workers
from fix_consumer import Bench
from local_stack.ports import is_free
from outbox_consumers import DurableInbox, Event, Job, Reject
from outbox_consumers.durable import steps
from outbox_consumers.failures.dead_letter import (
    DeadLetterLimit,
    DeadLetterLimiter,
    DeadLetters,
    FailureHistory,
)
from outbox_consumers.inbox import schema
from outbox_consumers.inbox.claims import cursor_of
from outbox_consumers.processes.counters import ConsumerCounters
from outbox_pipeline.cli import main
from waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack

APP = """
import os
from outbox_consumers import DurableInbox, Reject

TOPIC = os.environ["BENCH_TOPIC"]
durable = DurableInbox(
    "billing",
    kafka={"bootstrap.servers": os.environ["BENCH_KAFKA"], "group.id": TOPIC},
    dsn=os.environ["BENCH_DSN"],
    topics=[TOPIC],
)

@durable.handler("Placed")
def placed(conn, event):
    if event.data["n"] < 0 and not conn.execute("SELECT FROM fixed").fetchall():
        raise Reject("no such order")
    conn.execute(
        "INSERT INTO effect (event_id, key, n) VALUES (%s, %s, %s)", (event.id, event.key, event.data["n"])
    )
"""


@pytest.fixture
def lab(bench: Bench, tmp_path: Path) -> Lab:
    with psycopg.connect(bench.dsn, autocommit=True) as conn:
        schema.apply(conn, steps())
        conn.execute("CREATE TABLE fixed ()")
    (tmp_path / "jobs_app.py").write_text(APP)
    return Lab(bench.dsn, tmp_path, job_ids=bench.sent)


def three_free_ports() -> int:
    """Return a port that is free, as are the two after it."""
    while True:
        first = random.randrange(20_000, 31_990)
        if all(is_free(first + more) for more in range(3)):
            return first


def get(port: int, path: str) -> tuple[int, str]:
    """Send a GET request; status 0 while nothing listens on the port."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def healthy(port: int) -> bool:
    return get(port, "/health")[0] == 200


def start(bench: Bench, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environ = bench.environ
    program = str(Path(sys.executable).parent / "outboxctl")
    return subprocess.Popen(
        [program, "--json", "consume", "jobs_app:durable", *arguments],
        cwd=folder,
        env=os.environ | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_consume_runs_receiver_and_workers_that_serve_their_health(bench: Bench, lab: Lab) -> None:
    port = three_free_ports()
    parent = start(bench, lab.folder, "--workers", "2", "--listen", f"127.0.0.1:{port}")
    try:
        bench.send_many(200)
        until(lambda: len(lab.effects()) == 200)
        for number in range(3):
            until(partial(healthy, port + number))
        worker, receiver = json.loads(get(port, "/health")[1]), json.loads(get(port + 2, "/health")[1])
        assert worker["consumer"] == receiver["consumer"] == "billing"
        assert worker["lease_seconds_left"] > 0
        assert receiver["database"]
        metrics = "".join(get(port + number, "/metrics")[1] for number in range(3))
        assert 'outbox_durable_jobs_total{consumer="billing",outcome="done"}' in metrics
        assert 'outbox_durable_worker_healthy{consumer="billing"} 1.0' in metrics
        assert 'outbox_consumer_events_total{consumer="billing",outcome="processed"} 200.0' in metrics
        parent.send_signal(signal.SIGTERM)
        output, log = parent.communicate(timeout=PATIENCE_SECONDS)
    finally:
        parent.kill()
        parent.communicate()
    assert parent.returncode == 0, log
    assert json.loads(output) == {"consumer": "billing", "workers": 2, "counters": None}
    lab.assert_applied_once_in_order()
    assert lab.query("SELECT count(*) FROM inbox_worker WHERE alive_until > now()") == [(0,)]


class Program:
    """Runs outboxctl on a database and returns its output."""

    def __init__(self, dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._dsn = dsn
        self._capsys = capsys

    def __call__(self, *arguments: str) -> str:
        with pytest.raises(SystemExit) as caught:
            main([*arguments, "--dsn", self._dsn])
        captured = self._capsys.readouterr()
        assert caught.value.code == 0, captured.err
        return captured.out

    def dead(self, *filters: str) -> list[int]:
        listed = json.loads(self("dead-letters", "show", "--json", *filters))
        assert {letter["kind"] for letter in listed} <= {"job"}
        return [json.loads(letter["payload"])["n"] for letter in listed]


@pytest.fixture
def program(lab: Lab, capsys: pytest.CaptureFixture[str]) -> Program:
    return Program(lab.dsn, capsys)


def durable_of(lab: Lab) -> DurableInbox:
    """Make an inbox that rejects jobs of negative orders until they are fixed."""
    durable = new_inbox(lab.dsn)

    @durable.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        if event.data["n"] < 0 and not conn.execute("SELECT FROM fixed").fetchall():
            raise Reject("no such order")
        conn.execute(
            "INSERT INTO effect (event_id, key, n) VALUES (%s, %s, %s)",
            (event.id, event.key, event.data["n"]),
        )

    return durable


def test_dead_jobs_are_listed_redriven_and_discarded(lab: Lab, program: Program) -> None:
    durable = durable_of(lab)
    with psycopg.connect(lab.dsn, autocommit=True) as conn:
        durable.put_many(conn, [Job("Placed", {"n": n}, key=f"k{n % 2}") for n in range(-4, 4)])
    finish(lab, durable)
    assert sorted(lab.effects()) == [0, 1, 2, 3]
    assert sorted(program.dead()) == [-4, -3, -2, -1]
    assert sorted(program.dead("--key", "k0", "--consumer", "billing")) == [-4, -2]
    assert program.dead("--type", "Paid") == program.dead("--consumer", "other") == []
    assert "Reject: no such order" in program("dead-letters", "list")
    would = program("dead-letters", "redrive", "--key", "k0", "--dry-run")
    assert "2 dead letters would be redriven" in would
    assert "1 dead letters discarded" in program("dead-letters", "discard", "--max", "1", "--yes")
    assert len(program.dead()) == 3
    lab.run("INSERT INTO fixed DEFAULT VALUES")
    assert "3 dead letters redriven" in program("dead-letters", "redrive", "--rate", "50")
    finish(lab, durable)
    assert program.dead() == []
    assert len(lab.effects()) == 7
    for key in ("k0", "k1"):
        redriven = [n for n in lab.effects(key) if n < 0]
        assert redriven == sorted(redriven)


def test_dead_letters_and_dead_jobs_are_in_one_list(lab: Lab, program: Program) -> None:
    with psycopg.connect(lab.dsn) as conn:
        book = DeadLetters("billing", "inbox", DeadLetterLimiter(DeadLetterLimit()), None, ConsumerCounters())
        event = Event("Placed", {"n": 1}, id=uuid7())
        book.add(cursor_of(conn), event, FailureHistory(1), Reject("an event"))
    durable = durable_of(lab)
    with psycopg.connect(lab.dsn, autocommit=True) as conn:
        durable.put(conn, "Placed", {"n": -1})
    finish(lab, durable)
    listed = json.loads(program("dead-letters", "list", "--json"))
    assert [letter["kind"] for letter in listed] == ["event", "job"]
    assert len(json.loads(program("dead-letters", "list", "--json", "--max", "1"))) == 1
    document = json.loads(program("dead-letters", "discard", "--yes", "--json"))
    assert len(document["discarded"]) == 2
    assert json.loads(program("dead-letters", "list", "--json")) == []


def test_status_shows_the_queue(lab: Lab, program: Program) -> None:
    durable = durable_of(lab)
    assert json.loads(program("inbox", "status", "--json"))["queues"] == []
    with psycopg.connect(lab.dsn, autocommit=True) as conn:
        durable.put_many(conn, [Job("Placed", {"n": n}) for n in (-1, 1)])
        durable.put(conn, "Placed", {"n": 2}, run_at=datetime.now(UTC) + timedelta(days=1))
    with running_workers(durable):
        until(lambda: lab.states() == {"dead": 1, "later": 1})
        [queue] = json.loads(program("inbox", "status", "--json"))["queues"]
        assert (queue["consumer"], queue["workers"]) == ("billing", 1)
        assert {state: n["jobs"] for state, n in queue["states"].items()} == {"dead": 1, "later": 1}
        text = program("inbox", "status")
    assert "jobs of billing, 1 workers running" in text
    assert "later" in text
