"""Clients that hang up and readers that leave: `watch`, `consume` and `tail` go on, or end without a word."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from fix_consumer import Bench
from fix_stack import Database, Stack
from waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack

PROGRAM = Path(sys.executable).with_name("outboxctl")
HANG_UPS = 50
APP = """
import os
from outbox_consumers import Consumer

TOPIC = os.environ["BENCH_TOPIC"]
app = Consumer(
    "billing",
    kafka={"bootstrap.servers": os.environ["BENCH_KAFKA"], "group.id": TOPIC, "session.timeout.ms": 6000},
    dsn=os.environ["BENCH_DSN"],
    topics=[TOPIC],
)

@app.handler("Placed")
def placed(conn, event):
    conn.execute(
        "INSERT INTO effect (event_id, consumer, key, n) VALUES (%s, 'billing', %s, pg_backend_pid())",
        (event.id, event.key),
    )
    conn.execute("SELECT pg_sleep(0.01)")
"""


def free_port(count: int = 1) -> int:
    """Find a port after which `count - 1` others are free too."""
    while True:
        with closing(socket.socket()) as first:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                for further in range(1, count):
                    with closing(socket.socket()) as other:
                        other.bind(("127.0.0.1", port + further))
            except OSError:
                continue
            return port


def hang_up(port: int, path: str, *, reset: bool, after_seconds: float = 0.0) -> None:
    """Ask for something and close, or reset, the connection instead of reading the answer.

    After a close the server's first write succeeds and its second meets a broken pipe; after a reset the
    first one fails, in another way.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as client:
        if reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        time.sleep(after_seconds)


def hang_up_often(port: int, *paths: str) -> None:
    """Hang up at once and while the answer is on its way."""
    for number in range(HANG_UPS):
        path = paths[number % len(paths)]
        hang_up(port, path, reset=number % 3 == 0, after_seconds=(number % 5) / 1000)


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as client:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return client.recv(4).startswith(b"HTTP")
    except OSError:
        return False


@pytest.fixture
def definition(postgres: Stack, database: Database, tmp_path: Path) -> Path:
    """PostgreSQL is there with an empty outbox and a slot; Kafka and Connect are not."""
    with database.connect() as conn:
        conn.execute("CREATE TABLE outbox (id uuid PRIMARY KEY, occurred_at timestamptz, payload jsonb)")
        conn.execute("CREATE PUBLICATION hung_outbox FOR TABLE outbox")
        conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (f"hung_{database.name}",))
    connector = {"host": "db", "database": database.name, "user": "cdc", "password": "${env:X}"}
    document = {
        "pipeline": "hung",
        "postgres": {
            "admin": database.conninfo,
            "connector": connector,
            "slot": f"hung_{database.name}",
            "publication": "hung_outbox",
        },
        "kafka": {"client": {"bootstrap.servers": "127.0.0.1:1"}, "aggregates": {"order": {}}},
        "connect": {"url": "http://127.0.0.1:1"},
    }
    file = tmp_path / "outbox.yaml"
    file.write_text(json.dumps(document))
    return file


@contextmanager
def watching(definition: Path, *arguments: str, stdout: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run `outboxctl watch` while the block runs; it must end with 0 and without a traceback."""
    log = definition.parent / "log"
    with log.open("w") as err:
        process = subprocess.Popen(
            [PROGRAM, "-f", definition, "watch", "--interval", "0.5", "--no-tick", "--no-tidy", *arguments],
            stdout=subprocess.DEVNULL if stdout is None else stdout,
            stderr=err,
            text=True,
            env={**os.environ, "HOME": str(definition.parent), "NO_COLOR": "1"},
        )
    try:
        yield process
        assert process.poll() is None, (process.returncode, log.read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
    said = log.read_text()
    assert "Traceback" not in said
    assert "Exception" not in said


def test_clients_of_a_watch_that_hang_up(definition: Path) -> None:
    port = free_port()
    with watching(definition, "--serve", f"127.0.0.1:{port}") as process:
        until(lambda: answers(port), "the first answer")
        hang_up_often(port, "/", "/metrics", "/status.json", "/nowhere")
        assert answers(port)
        assert process.poll() is None


def test_a_watch_whose_reader_left_watches_on_and_says_so(definition: Path) -> None:
    port = free_port()
    read, write = os.pipe()
    os.close(read)
    with watching(definition, "--json", "--serve", f"127.0.0.1:{port}", stdout=write) as process:
        os.close(write)
        log = definition.parent / "log"
        until(lambda: "nobody reads stdout" in log.read_text(), "the line")
        until(lambda: answers(port), "an answer")
        assert process.poll() is None
    assert log.read_text().count("nobody reads stdout") == 1


def test_the_reader_of_a_tail_leaves(bench: Bench, definition: Path) -> None:
    bench.send_many(5000)
    document = json.loads(definition.read_text())
    document["kafka"]["client"] = {"bootstrap.servers": bench.server.kafka}
    definition.write_text(json.dumps(document))
    shell = '"$0" -f "$1" tail --from-beginning --topic "$2" | head -n 1; exit "${PIPESTATUS[0]}"'
    done = subprocess.run(
        ["bash", "-c", shell, PROGRAM, definition, bench.topic],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1), done
    assert [line for line in done.stderr.splitlines() if not line.startswith("reading ")] == []


def test_a_command_whose_reader_left_keeps_its_exit_code(definition: Path) -> None:
    shell = '"$0" -f "$1" plan | true; exit "${PIPESTATUS[0]}"'
    done = subprocess.run(
        ["bash", "-c", shell, PROGRAM, definition],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    alone = subprocess.run([PROGRAM, "-f", definition, "plan"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (alone.returncode, alone.stderr)


def test_clients_of_a_consumer_that_hang_up(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "hung_app.py").write_text(APP)
    port = free_port(2)
    command = [str(PROGRAM), "consume", "hung_app:app", "--workers", "2", "--listen", f"127.0.0.1:{port}"]
    with (tmp_path / "log").open("w") as log:
        parent = subprocess.Popen(command, cwd=tmp_path, env=os.environ | bench.environ, stderr=log)
    try:
        until(lambda: answers(port) and answers(port + 1), "both ports")
        for _ in range(3):
            bench.send_many(100, keys=6)
            for worker in (port, port + 1):
                hang_up_often(worker, "/health", "/metrics")
        until(lambda: len(bench.query("SELECT event_id FROM effect")) == len(bench.sent))
        assert parent.poll() is None
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(PATIENCE_SECONDS) == 0
    finally:
        parent.kill()
        parent.wait()
    bench.applied_once()
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said
    assert "SIGPIPE" not in said
    assert "dead letter" not in said
