"""Each log line about an event says which: its id, aggregate and attempt, for people and for programs."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fix_consumer import Bench, running
from outbox_consumers import Event, Reject
from waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack

APP = """
import os
from outbox_consumers import Consumer, RetryStrategy

app = Consumer("billing", kafka={"bootstrap.servers": os.environ["BENCH_KAFKA"]}, dsn=os.environ["BENCH_DSN"],
               topics=[os.environ["BENCH_TOPIC"]], retry=RetryStrategy(max_attempts=2, exponential_wait=0))

@app.handler("Placed", on_failure="stop")
def placed(conn, event):
    raise RuntimeError("broken\\nin two lines")
"""


def test_every_line_about_an_event_carries_its_id_aggregate_and_attempt(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    app = bench.app()
    attempts: dict[str, int] = {}

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        if event.data["n"] == 1:
            raise Reject("never")
        attempts[event.key] = event.attempt
        if event.attempt < 3:
            raise RuntimeError("not yet")

    @app.handler("Cancelled", on_failure="park")
    def cancelled(conn: psycopg.Connection[Any], event: Event) -> None:
        if event.attempt < 3:
            raise RuntimeError("not yet")

    caplog.set_level(logging.ERROR, "outbox_consumers")
    rejected = bench.send({"n": 1}, key="a", partition=0)
    held = bench.send({"n": 2}, key="b", partition=1)
    parked = bench.send({"n": 3}, key="c", kind="Cancelled", partition=2)
    bench.flush()
    with running(app):
        until(lambda: (app.counters.dead_letters, app.counters.unparked, attempts.get("b")) == (1, 1, 3))
    lines = [vars(record) for record in caplog.records if record.name == "outbox_consumers"]
    told = {(line["event_id"], line["aggregate"], line["attempt"], line["partition"]) for line in lines}
    assert told == {
        (str(rejected), "a", 1, 0),
        (str(held), "b", 1, 1),
        (str(held), "b", 2, 1),
        (str(parked), "c", 1, 2),
        (str(parked), "c", 2, 2),
    }


def test_the_command_logs_lines_of_json(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "json_app.py").write_text(APP)
    event_id = bench.send({"n": 1}, key="order-1")
    bench.flush()
    environ = bench.environ
    done = subprocess.run(
        [Path(sys.executable).with_name("outboxctl"), "consume", "json_app:app", "--log-format", "json"],
        cwd=tmp_path,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    *lines, last = done.stderr.splitlines()
    documents = [json.loads(line) for line in lines]
    assert last.startswith("error: ")
    failed = next(document for document in documents if document.get("event_id") == str(event_id))
    assert failed["level"] == "error"
    assert (failed["aggregate"], failed["event_type"], failed["attempt"]) == ("order-1", "Placed", 1)
    assert failed["topic"] == bench.topic
    assert "RuntimeError: broken in two lines" in failed["message"]
    assert "in placed" in failed["exception"]
