"""`make demo`, as a user sees it: progress, a ledger, three commands, one exact last line. Twice in a row."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from fix_stack import Stack

ROOT = Path(__file__).parents[2]
ORDERS = 1000

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(600)]


def demo(stack: Stack, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["scripts/demo", "--name", stack.name, *options],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.parametrize("run", ["first", "second"])
def test_demo(stack: Stack, run: str) -> None:
    done = demo(stack, "--orders", str(ORDERS))
    lines = done.stdout.splitlines()
    assert lines[-1] == (
        f"demo: written={ORDERS} delivered={ORDERS} applied={ORDERS} missing=0 duplicated=0"
    ), done.stdout
    assert done.returncode == 0
    assert len([line for line in lines if "kill -9 billing" in line]) == 2
    assert len([line for line in lines if "kill -9 Kafka Connect" in line]) == 1
    assert any(re.fullmatch(r" +invoices +1,000 +0", line) for line in lines)
    commands = lines[lines.index("The stack is left running. Try next:") + 2 : -2]
    assert len(commands) == 3


def test_demo_reports_a_failure_in_one_line() -> None:
    done = subprocess.run(
        ["scripts/demo", "--stack", "compose"],
        cwd=ROOT,
        env={**os.environ, "DOCKER_HOST": "tcp://127.0.0.1:1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("demo: failed: ")
    assert done.stderr == ""
