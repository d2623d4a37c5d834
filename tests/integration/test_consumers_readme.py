"""The example in consumers/README.md is a program: it runs, and does what the text says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from fix_consumer import Bench
from waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack

README = (Path(__file__).parents[2] / "consumers" / "README.md").read_text("utf-8")


def snippet(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.S)
    assert found is not None
    return found[1]


def test_the_twenty_lines_run_as_written(bench: Bench, tmp_path: Path) -> None:
    code = snippet("python")
    assert sum(1 for line in code.splitlines() if line.strip() and not line.startswith("#")) <= 20
    (tmp_path / "billing.py").write_text(code.replace('"outbox.event.order"', f'"{bench.topic}"'))
    bench.run("CREATE TABLE invoice (order_id text, total numeric)")
    for number, total in enumerate((5, 7, -1)):
        event_id = bench.send({"total": total}, kind="OrderPlaced", key=f"o{number}")
        bench.send({"total": total}, kind="OrderPlaced", key=f"o{number}", id=event_id)
    bench.flush()
    folder = Path(sys.executable).parent
    environ = os.environ | {
        "OUTBOX_KAFKA_BOOTSTRAP": bench.server.kafka,
        "BILLING_DSN": bench.dsn,
        "PATH": f"{folder}:{os.environ['PATH']}",
    }
    for line in snippet("sh").splitlines():
        command = line.partition("#")[0].strip()
        if command.startswith("outboxctl inbox"):
            command += f' --dsn "{bench.dsn}"'
            subprocess.run(command, shell=True, cwd=tmp_path, env=environ, check=True, capture_output=True)
    child = subprocess.Popen(["outboxctl", "consume", "billing:app"], cwd=tmp_path, env=environ)
    try:
        until(lambda: bench.query("SELECT count(*) FROM inbox") == [(3,)])
    finally:
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE_SECONDS) == 0
    assert bench.query("SELECT order_id, total FROM invoice ORDER BY 1") == [("o0", 5), ("o1", 7)]


def test_the_table_in_the_text_is_the_one_that_is_made(bench: Bench) -> None:
    columns = (
        "SELECT column_name, data_type, is_nullable, column_default, collation_name"
        " FROM information_schema.columns WHERE table_name = %s ORDER BY ordinal_position"
    )
    with psycopg.connect(bench.dsn, autocommit=True) as conn:
        made = conn.execute(columns.encode(), ("inbox",)).fetchall()
        conn.execute("DROP TABLE inbox")
        conn.execute(snippet("sql").encode())
        assert conn.execute(columns.encode(), ("inbox",)).fetchall() == made
