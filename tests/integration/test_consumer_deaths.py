"""An event that kills the process is found and given up, although no process lives to tell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fix_consumer import Bench, running
from outbox_consumers.failures import dead_letter
from waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack

APP = """
import os, signal
from outbox_consumers import Consumer

TOPIC = os.environ["BENCH_TOPIC"]
app = Consumer(
    "billing",
    kafka={"bootstrap.servers": os.environ["BENCH_KAFKA"], "group.id": TOPIC, "group.instance.id": "one"},
    dsn=os.environ["BENCH_DSN"],
    topics=[TOPIC],
)

@app.handler("Placed")
def placed(conn, event):
    if event.data["n"] == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    conn.execute(
        "INSERT INTO effect (event_id, consumer, key, n) VALUES (%s, 'billing', %s, %s)",
        (event.id, event.key, event.data["n"]),
    )
"""


def test_an_event_that_crashes_the_process_becomes_a_dead_letter(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "deadly_app.py").write_text(APP)
    bench.send_many(60)
    environ = bench.environ
    command = [str(Path(sys.executable).parent / "outboxctl"), "consume", "deadly_app:app"]
    codes: list[int] = []
    while len(codes) < 8:
        child = subprocess.Popen(command, cwd=tmp_path, env=os.environ | environ, stderr=subprocess.DEVNULL)
        try:
            until(lambda child=child: child.poll() is not None or len(bench.effects()) == 59)  # type: ignore[misc]
            child.send_signal(signal.SIGTERM)
            codes.append(child.wait(PATIENCE_SECONDS))
        finally:
            child.kill()
        if codes[-1] == 0:
            break
    # Once unsuspecting, then with each attempt counted.
    assert codes == [-signal.SIGKILL] * 4 + [0]
    with bench.database.connect() as conn:
        (letter,) = dead_letter.find(conn, dead_letter.DeadLetterFilter(), "inbox")
    assert letter["event_id"] == bench.sent.pop(13)
    assert letter["error"] == "CrashedTooOften: the process crashed 3 times while it handled this event"
    bench.applied_once()
    assert bench.query("SELECT * FROM inbox_attempt") == []
    assert bench.query("SELECT * FROM inbox_member") == []


def test_regular_ends_and_running_members_are_no_crashes(bench: Bench) -> None:
    bench.send_many(30)
    with running(bench.applying()) as app:
        until(lambda: app.counters.processed == 30)
        other = bench.applying(kafka={"group.id": f"{bench.topic}.other"})
        with running(other):
            until(lambda: other.counters.duplicates == 30)
    with running(bench.applying()) as heir:
        bench.send_many(30)
        until(lambda: heir.counters.processed == 30)
    assert app.counters.singles == other.counters.singles == heir.counters.singles == 0
