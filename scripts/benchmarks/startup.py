"""How long `outboxctl --help` takes, and what `from outbox_pipeline import outbox` loads."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.rounds import Log

OUTBOXCTL = Path(sys.executable).with_name("outboxctl")
WORK = "start of the command line"
HELP, PYTHON = "outboxctl --help", "python -c pass"

_LOADED = """
import sys
before = set(sys.modules)
from outbox_pipeline import outbox
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(name for name in new - set(sys.stdlib_module_names) if not name.startswith(("_", "cython"))))
"""


def measure(rounds: int, log: Log) -> list[Figure]:
    """Time the command and the bare interpreter in turn."""
    log(f"outboxctl --help, {rounds} rounds")
    commands = {HELP: [str(OUTBOXCTL), "--help"], PYTHON: [sys.executable, "-c", "pass"]}
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            taken[name].append(_seconds(command))
    return [Figure(WORK, name, tuple(seconds), "s", more_is_better=False) for name, seconds in taken.items()]


def loaded_packages() -> list[str]:
    """List the packages outside the standard library that writing an event loads."""
    done = subprocess.run([sys.executable, "-c", _LOADED], check=True, capture_output=True, text=True)
    return done.stdout.split()


def _seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started
