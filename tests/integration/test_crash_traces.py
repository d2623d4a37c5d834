"""A long-running process that crashes in native code says on stderr where each of its threads was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fix_consumer import Bench
from fix_relay import Relayed
from waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack

PROGRAM = Path(sys.executable).with_name("outboxctl")
CRASHED = "Fatal Python error: Segmentation fault"
DEFINITION = """\
pipeline: crashing
postgres:
  admin: host=127.0.0.1 port=1 user=u dbname=d
  connector: {host: db, database: d, user: c, password: "${env:X}"}
kafka:
  client: {bootstrap.servers: "127.0.0.1:1"}
  aggregates: {order: {}}
connect:
  url: http://127.0.0.1:1
"""
APP = """
import os
from outbox_consumers import Consumer

app = Consumer(
    "billing",
    kafka={"bootstrap.servers": os.environ["BENCH_KAFKA"], "group.id": os.environ["BENCH_TOPIC"]},
    dsn=os.environ["BENCH_DSN"],
    topics=[os.environ["BENCH_TOPIC"]],
)

@app.handler("Placed")
def placed(conn, event):
    conn.execute(
        "INSERT INTO effect (event_id, consumer, key, n) VALUES (%s, 'billing', %s, %s)",
        (event.id, event.key, event.data["n"]),
    )
"""


def children(pid: int) -> list[int]:
    """Name the processes whose parent this one is, apart from multiprocessing's own resource tracker."""
    found = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [
        child for child in found if b"resource_tracker" not in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def traced(processes: list[int]) -> list[int]:
    """Select the processes that catch SIGSEGV by now: one that has just started does not yet."""
    return [pid for pid in processes if caught_signals(pid) & 1 << signal.SIGSEGV - 1]


def caught_signals(pid: int) -> int:
    """Read the mask of the signals that a process has handlers for."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt"))


def crash(process: subprocess.Popen[bytes], log: Path, innermost: str) -> None:
    """Send SIGSEGV, and find the trace with the file where the main thread was."""
    process.send_signal(signal.SIGSEGV)
    assert process.wait(PATIENCE_SECONDS) == -signal.SIGSEGV
    assert CRASHED in log.read_text()
    assert innermost in log.read_text()


def start(folder: Path, *arguments: str, **environ: str) -> tuple[subprocess.Popen[bytes], Path]:
    """Start `outboxctl`; what it says, on stdout as well, goes to the file."""
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [PROGRAM, *arguments], cwd=folder, env=os.environ | environ, stdout=out, stderr=subprocess.STDOUT
        )
    return process, log


def crash_first_child(
    process: subprocess.Popen[bytes] | subprocess.Popen[str], log: Path, named: str
) -> None:
    """Let a worker process crash, and find its trace on the stderr that it shares with its parent."""
    try:
        victim = until(lambda: traced(children(process.pid)), "a worker that leaves a trace")[0]
        os.kill(victim, signal.SIGSEGV)
        # The trace is written line by line: its first line may be there before the others.
        until(lambda: named in log.read_text().partition(CRASHED)[2], "the trace of the worker")
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("options", [(), ("--tick-only",)])
def test_a_watch_that_crashes(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "outbox.yaml").write_text(DEFINITION)
    process, log = start(tmp_path, "watch", *options, X="x")
    until(lambda: log.read_text(), "the first line")
    crash(process, log, "outbox_pipeline")


def test_a_consumer_that_crashes(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "crashing_app.py").write_text(APP)
    bench.send_many(3)
    process, log = start(tmp_path, "consume", "crashing_app:app", **bench.environ)
    until(lambda: len(bench.effects()) == 3, "three effects")
    crash(process, log, "outbox_consumers/loop/group_member.py")


def test_a_worker_of_a_consumer_that_crashes(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "crashing_app.py").write_text(APP)
    bench.send_many(3)
    process, log = start(tmp_path, "consume", "crashing_app:app", "--workers", "2", **bench.environ)
    until(lambda: len(bench.effects()) == 3, "three effects")
    crash_first_child(process, log, "outbox_consumers/processes/fleet.py")


def test_a_relay_that_crashes(relayed: Relayed, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = relayed.start(log=log)
    relayed.write(3)
    relayed.await_left(0)
    process.send_signal(signal.SIGSEGV)
    assert process.wait(PATIENCE_SECONDS) == -signal.SIGSEGV
    assert CRASHED in log.read_text()
    assert "outbox_pipeline/relay" in log.read_text()


def test_a_worker_of_a_relay_that_crashes(relayed: Relayed, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = relayed.start("--workers", "2", log=log)
    relayed.write(300)
    relayed.await_left(0)
    crash_first_child(process, log, "outbox_pipeline/relay")
