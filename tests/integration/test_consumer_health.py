"""What a running consumer shows: health, metrics; and several processes under one parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fix_consumer import Bench, running, write_effect
from outbox_connectors.errors import Unreachable
from outbox_consumers import Event
from outbox_consumers.processes.health import serving
from waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_health_and_metrics_of_a_running_consumer(bench: Bench) -> None:
    app = bench.applying()
    bench.send_many(50)
    with serving(app.watched, "127.0.0.1", 0) as port:
        assert get(port, "/health")[0] == 503  # it does not run yet
        with running(app):
            until(lambda: app.counters.processed == 50)
            until(lambda: get(port, "/health")[0] == 200)
            document = json.loads(get(port, "/health")[1])
            assert (document["consumer"], document["held"], document["database"]) == ("billing", 0, True)
            until(lambda: get(port, "/metrics")[1].count(f'topic="{bench.topic}"') == 3)
            text = get(port, "/metrics")[1]
        assert 'outbox_consumer_events_total{consumer="billing",outcome="processed"} 50.0' in text
        assert 'outbox_consumer_healthy{consumer="billing"} 1.0' in text
        assert f'partition="0",topic="{bench.topic}"}} 0.0' in text
        assert get(port, "/health")[0] == 503  # it has ended
        assert get(port, "/nowhere")[0] == 404
        with (
            pytest.raises(Unreachable, match="choose another --listen"),
            serving(app.watched, "127.0.0.1", port),
        ):
            pass


def test_a_handler_that_does_not_come_back_makes_the_consumer_unhealthy(bench: Bench) -> None:
    app = bench.app(kafka={"max.poll.interval.ms": 2000, "session.timeout.ms": 2000})
    go_on = threading.Event()

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        go_on.wait(PATIENCE_SECONDS)
        write_effect(conn, event)

    bench.send_many(1)
    with running(app):
        until(lambda: app.health().healthy)
        until(lambda: not app.health().healthy)
        go_on.set()
        until(lambda: app.counters.processed == 1)
        until(lambda: app.health().healthy)
    bench.applied_once()


def test_health_shows_held_records_and_a_lost_database(bench: Bench) -> None:
    app = bench.app()
    broken = True

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        if broken:
            raise RuntimeError
        write_effect(conn, event)

    for n in range(10):
        bench.send({"n": n}, partition=0)
    bench.flush()
    name = bench.database.name
    with running(app), psycopg.connect(bench.server.conninfo(), autocommit=True) as admin:
        until(lambda: app.health().held == 10)
        admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false'.encode())
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        until(lambda: not app.health().database)
        broken = False
        admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true'.encode())
        until(lambda: app.health().healthy and app.counters.processed == 10)
    bench.applied_once()


APP = """
import os
from outbox_consumers import Consumer

TOPIC = os.environ["BENCH_TOPIC"]
app = Consumer(
    "billing",
    kafka={"bootstrap.servers": os.environ["BENCH_KAFKA"], "group.id": TOPIC, "session.timeout.ms": 2000},
    dsn=os.environ["BENCH_DSN"],
    topics=[TOPIC],
)

@app.handler("Placed")
def placed(conn, event):
    conn.execute(
        "INSERT INTO effect (event_id, consumer, key, n) VALUES (%s, 'billing', %s, pg_backend_pid())",
        (event.id, event.key),
    )
"""


def test_workers_share_the_partitions_and_one_that_is_killed_comes_back(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "many_app.py").write_text(APP)
    environ = bench.environ
    command = [str(Path(sys.executable).parent / "outboxctl"), "consume", "many_app:app", "--workers", "3"]
    log = (tmp_path / "log").open("w")
    parent = subprocess.Popen(command, cwd=tmp_path, env=os.environ | environ, stderr=log)

    def workers() -> set[int]:
        return {pid for (pid,) in bench.query("SELECT DISTINCT n FROM effect")}

    def send_until_there_are(count: int) -> None:
        def reached() -> bool:
            bench.send_many(6, keys=6)
            return len(workers()) >= count

        until(reached)

    try:
        send_until_there_are(3)
        children = subprocess.run(
            ["pgrep", "-P", str(parent.pid)], capture_output=True, text=True, check=True
        ).stdout.split()
        assert len(children) == 3
        os.kill(int(children[0]), signal.SIGKILL)
        send_until_there_are(4)
        until(lambda: len(bench.query("SELECT event_id FROM effect")) == len(bench.sent))
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(PATIENCE_SECONDS) == 0
    finally:
        parent.kill()
        parent.wait()
        log.close()
    bench.applied_once()


def test_workers_that_cannot_start_end_their_parent_with_the_reason(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "many_app.py").write_text(APP)
    environ = bench.environ
    bench.run("DROP TABLE inbox")
    command = [str(Path(sys.executable).parent / "outboxctl"), "consume", "many_app:app", "--workers", "2"]
    command += ["--log-level", "error"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert "there is no table inbox; run outboxctl inbox init" in done.stderr
