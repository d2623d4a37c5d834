"""`outboxctl status`, `slots`, `watch` and `alerts` as a user runs them, mostly on bad input."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from fix_stack import Database
from waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack

PROGRAM = Path(sys.executable).with_name("outboxctl")
DEFINITION = """\
pipeline: cmd
postgres:
  admin: "{conninfo}"
  connector: {{host: db, database: {database}, user: cmd_cdc, password: "${{env:X}}"}}
  slot: {slot}
  publication: cmd_outbox
kafka:
  client: {{bootstrap.servers: "127.0.0.1:1"}}
  aggregates: {{order: {{}}}}
connect:
  url: {connect}
watch:
  groups: [billing]
"""
TABLE = "CREATE TABLE outbox (id uuid PRIMARY KEY, occurred_at timestamptz, payload jsonb)"


class Bench:
    """A definition file and a way to run `outboxctl` with it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "outbox.yaml"
        self.slot = ""
        self.environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "NO_COLOR": "1"}

    def define(self, conninfo: str, database: str = "nowhere", connect: str = "http://127.0.0.1:1") -> None:
        self.slot = f"cmd_{database}"
        self.file.write_text(
            DEFINITION.format(conninfo=conninfo, database=database, connect=connect, slot=self.slot)
        )

    def run(self, *arguments: str, timeout: float = PATIENCE_SECONDS) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            check=False,
            env=self.environ,
            timeout=timeout,
        )
        assert "Traceback" not in done.stdout + done.stderr
        assert "internal error" not in done.stderr, done.stderr
        return done

    def command(self, *arguments: str) -> list[str]:
        return [str(PROGRAM), "-f", str(self.file), *arguments]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    found = Bench(tmp_path)
    found.define("host=127.0.0.1 port=1 user=nobody password=secret-word")
    return found


@pytest.fixture
def real(bench: Bench, database: Database) -> Bench:
    """PostgreSQL is there, with a table and a slot; Kafka and Connect are not."""
    with database.connect() as conn:
        conn.execute(TABLE)
        conn.execute("CREATE PUBLICATION cmd_outbox FOR TABLE outbox")
        bench.define(database.conninfo, database.name)
        conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (bench.slot,))
    return bench


def test_nothing_reachable_is_6_and_says_each_reason(bench: Bench) -> None:
    done = bench.run("status")
    assert done.returncode == 6
    for source in ("postgres", "connect", "kafka"):
        assert f"not seen: {source}: " in done.stdout
    assert "secret-word" not in done.stdout + done.stderr
    nagios = bench.run("status", "--nagios")
    assert nagios.returncode == 3
    assert re.fullmatch(r"OUTBOX UNKNOWN - postgres_unreachable: .*\n", nagios.stdout)


def test_slots_without_a_server_is_6(bench: Bench) -> None:
    done = bench.run("slots")
    assert done.returncode == 6
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_json_is_one_document_with_the_promised_fields(real: Bench) -> None:
    done = real.run("--json", "status", "--evidence")
    found = json.loads(done.stdout)
    assert done.returncode in (4, 5)
    assert found["verdict"] == "kafka_unreachable"
    assert found["slot"]["name"] == real.slot
    assert found["slot"]["active"] is False
    assert {unseen["source"] for unseen in found["unseen"]} == {"connect", "kafka"}
    assert found["sample"]["postgres"]["slots"]
    assert "consumer_down" in {finding["key"] for finding in found["findings"]}


def test_the_second_status_needs_no_wait(real: Bench) -> None:
    first = real.run("--json", "status", "--interval", "1")
    assert first.returncode in (4, 5)
    file = next((Path(real.environ["HOME"]) / ".local/state/outboxctl").iterdir())
    assert file.stat().st_mode & 0o077 == 0
    time.sleep(1)  # as long as the interval: the point in the file is then old enough
    second = json.loads(real.run("--json", "status", "--interval", "1").stdout)
    assert second["server"]["wal_bytes_per_second"] is not None


def test_slots_of_others_are_listed_too(real: Bench, database: Database) -> None:
    with database.connect() as conn:
        conn.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", (f"x_{database.name}",)
        )
    found = json.loads(real.run("--json", "slots").stdout)["slots"]
    assert found[0]["name"] == real.slot
    assert found[0]["ours"] is True
    other = next(slot for slot in found if slot["name"] == f"x_{database.name}")
    assert other["retained_bytes"] is not None
    assert other["ours"] is False


class _Html(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<html>Welcome to the proxy</html>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def proxy() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Html)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_html_instead_of_connect_is_said(real: Bench, database: Database, proxy: str) -> None:
    real.define(database.conninfo, database.name, proxy)
    found = json.loads(real.run("--json", "status").stdout)
    unseen = next(unseen for unseen in found["unseen"] if unseen["source"] == "connect")
    assert "not with JSON" in unseen["reason"]
    assert unseen["refused"] is True


def _port() -> int:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _get(url: str) -> str:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def test_watch_serves_and_ends_on_sigterm(real: Bench) -> None:
    port = _port()
    process = subprocess.Popen(
        real.command("watch", "--serve", f"127.0.0.1:{port}", "--interval", "1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=real.environ,
    )
    try:
        assert _get(f"http://127.0.0.1:{port}/readyz") == "ready\n"
        assert 'outbox_verdict{key="kafka_unreachable",pipeline="cmd"} 1.0' in _get(
            f"http://127.0.0.1:{port}/metrics"
        )
        assert "<svg" in _get(f"http://127.0.0.1:{port}/")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "kafka_unreachable" in out
    assert "Traceback" not in err


def test_a_tidying_that_fails_is_a_line_and_a_metric_and_the_watch_goes_on(
    real: Bench, database: Database
) -> None:
    with database.connect() as conn:
        conn.execute("ALTER TABLE outbox RENAME COLUMN occurred_at TO happened_at")
    port = _port()
    process = subprocess.Popen(
        real.command(
            "watch", "--serve", f"127.0.0.1:{port}", "--interval", "1", "--tidy-every", "1s", "--no-observe"
        ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=real.environ,
    )

    def number(name: str) -> float:
        found = re.search(rf"^{name}{{.*}} (.*)$", _get(f"http://127.0.0.1:{port}/metrics"), re.MULTILINE)
        return float(found[1]) if found else 0.0

    try:
        until(lambda: number("outbox_watch_failed_tidies_total") >= 2, "the second failure")
        seen = number("outbox_watch_samples_total")
        until(lambda: number("outbox_watch_samples_total") > seen, "another sample")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "tidy failed: " in err
    assert "Traceback" not in err


def test_watch_tells_a_command(real: Bench, tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    process = subprocess.Popen(
        real.command(
            "watch", "--interval", "1", "--no-tick", "--on-change", f"cat > {told}.new; mv {told}.new {told}"
        ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=real.environ,
    )
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not told.exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        found = json.loads(told.read_text())
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
    assert (found["event"], found["before"], found["pipeline"]) == ("change", None, "cmd")


def test_a_port_that_is_taken_is_one_line(real: Bench) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = real.run("watch", "--serve", f"127.0.0.1:{taken.getsockname()[1]}")
    assert done.returncode == 1
    assert "cannot listen on" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("watch", "--serve", "9187"),
        ("watch", "--repeat", "often"),
        ("watch", "--tidy-every", "often"),
        ("watch", "--notify", "nowhere"),
        ("watch", "--once"),
        ("status", "--interval", "0"),
    ],
)
def test_wrong_options_are_2(bench: Bench, arguments: tuple[str, ...]) -> None:
    assert bench.run(*arguments).returncode == 2


def test_a_narrow_terminal_is_drawn_on(real: Bench) -> None:
    master, slave = pty.openpty()
    environ: Mapping[str, str] = {**real.environ, "COLUMNS": "40", "LINES": "20", "TERM": "xterm"}
    process = subprocess.Popen(
        real.command("watch", "--interval", "1", "--no-tick"), stdout=slave, stderr=slave, env=environ
    )
    os.close(slave)
    seen = b""
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        with suppress(OSError):
            while b"kafka_unreachable" not in seen and time.monotonic() < deadline:
                seen += os.read(master, 4096)
    finally:
        process.send_signal(signal.SIGINT)
        with suppress(OSError):
            while os.read(master, 4096):
                pass
        assert process.wait(PATIENCE_SECONDS) == 0
        os.close(master)
    assert b"kafka_unreachable" in seen
    assert b"Traceback" not in seen


def test_alerts_are_rules_with_our_names(bench: Bench) -> None:
    done = bench.run("alerts")
    assert done.returncode == 0
    assert 'pipeline="cmd"' in done.stdout
    exporter = json.loads(bench.run("--json", "alerts", "--postgres-exporter").stdout)
    assert 'slot_name="cmd_nowhere"' in exporter["rules"]
