"""Processes under one parent, without any server: who ends all, and who is started again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, sys, threading, time
from pathlib import Path
from outbox_consumers.processes import fleet
from outbox_consumers.errors import Failed, ReadOnlyDatabase, Unreachable

folder, ends = Path(sys.argv[1]), sys.argv[2].split(",")
fleet.MAX_RESTART_PAUSE = 0.02
told = threading.Event()

def died(name):
    return len(list(folder.glob(name + ".*")))

def first(name):
    number = died("first")
    (folder / f"first.{number}").touch()
    how = ends[number] if number < len(ends) else "works"
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "away":
        raise Unreachable("nobody answers")
    if how == "standby":
        raise ReadOnlyDatabase("a standby")
    if how == "cannot":
        raise Failed("no inbox")
    (folder / "works").touch()
    told.wait()

def second(name):
    (folder / f"second.{died('second')}").touch()
    told.wait()

stop = threading.Event()

def watch():
    while not (folder / "works").exists():
        time.sleep(0.02)
    stop.set()

threading.Thread(target=watch, daemon=True).start()
roles = {name: fleet.Role(run, told.set, None) for name, run in (("a", first), ("b", second))}
try:
    fleet.Fleet(roles, lambda name: None, grace=60.0).run(stop)
except Failed as error:
    print(error)
    sys.exit(1)
"""


@pytest.mark.parametrize(
    ("ends", "code", "begun"),
    [
        ("killed", 0, 2),
        ("killed,away,standby,away", 0, 5),  # the others wait for the servers, and so does who comes anew
        ("away", 1, 1),  # at the first start it is the settings that are wrong
        ("killed,cannot", 1, 2),
    ],
)
def test_a_restarted_process_may_find_a_server_unreachable(
    tmp_path: Path, ends: str, code: int, begun: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), ends],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert len(list(tmp_path.glob("first.*"))) == begun
    assert len(list(tmp_path.glob("second.*"))) == 1
    assert ("cannot work" in done.stdout) == (code == 1)


SLOW_START = """
import random, threading, time
from outbox_consumers.processes import fleet

told = threading.Event()
random.seed = lambda: time.sleep(1.0)  # the first thing that a child does: it has no handler yet

stop = threading.Event()
threading.Timer(0.3, stop.set).start()
started = time.monotonic()
fleet.Fleet({"a": fleet.Role(lambda name: told.wait(), told.set, None)}, print, grace=60.0).run(stop)
print("stopped" if time.monotonic() - started < 30.0 else "killed at the end of the grace")
"""


def test_a_process_that_has_just_been_forked_stops_at_a_signal() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SLOW_START], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stdout + done.stderr
