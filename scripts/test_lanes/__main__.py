"""Run as `python -m test_lanes`; scripts/test does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread
from types import FrameType

from test_lanes.lanes import Lane, Place
from test_lanes.session import Session
from test_lanes.stacks import StackDidNotStart, Stacks

ROOT = Path(__file__).resolve().parents[2]
LOGS = Path(".stack/test-logs")
ALL_MAJORS = "14 15 16 17 18"

# Most of what takes long is waiting for servers that were killed. So the tests run in lanes beside each
# other, each with a stack of its own. The first lane takes whatever the others do not name.
FIRST = "test"
BESIDE = {
    "test-two": "acceptance integration/test_stack.py integration/test_loss.py"
    " integration/test_watch_command.py integration/test_foreign_connector.py integration/test_hang_ups.py"
    " integration/test_squatted_names.py integration/test_canary.py",
    "test-three": "scenarios integration/test_durable_crash.py integration/test_durable_leases.py"
    " integration/test_durable_outages.py integration/test_watch_kafka.py"
    " integration/test_message_rights.py integration/test_wire_guard.py",
    "test-four": "integration/test_relay*.py integration/test_provision*.py integration/test_connect*.py"
    " integration/test_lost_slot.py integration/test_recover.py integration/test_replay.py"
    " integration/test_road.py integration/test_switch.py integration/test_preflight.py",
}
STARTED_EARLY = (
    FIRST,
    "test-two",
)  # while lint runs; the others start when their first test asks for servers


def main(arguments: list[str]) -> int:
    """Run everything, or pytest alone with these arguments; returns the exit code."""
    os.chdir(ROOT)
    os.environ.pop(
        "PYTHONPATH", None
    )  # scripts/test set it to find this program; tests find theirs themselves
    LOGS.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits it ignored
    signal.signal(signal.SIGTERM, _interrupt)
    stacks = Stacks(ROOT, LOGS)
    if arguments[:1] == ["--matrix"]:
        os.environ["OUTBOX_TEST_MAJORS"] = ALL_MAJORS
        arguments = ["-m", "matrix", *arguments[1:]]
    try:
        return run_pytest(arguments, stacks) if arguments else run_everything(stacks)
    except StackDidNotStart as error:
        say(f"{error}\n== failed: a stack did not start")
    except subprocess.CalledProcessError as error:
        say(f"\n== failed: {error.cmd[0]}")
    except KeyboardInterrupt:
        say("\n== interrupted")
    return 1


def run_pytest(arguments: list[str], stacks: Stacks) -> int:
    """Run pytest alone on the stack that $OUTBOX_TEST_STACK names, and stop that."""
    name = os.environ.setdefault("OUTBOX_TEST_STACK", FIRST)
    try:
        stacks.up(name)
        report = f"--junitxml={LOGS / name}.xml"
        command = [sys.executable, "-m", "pytest", "--durations=15", report, *arguments]
        return subprocess.run(command, check=False).returncode
    finally:
        stacks.down(name)


def run_everything(stacks: Stacks) -> int:
    """Run lint, the wheel on each Python, and all tests in lanes; stop the stacks at the end."""
    try:
        say(f"\n== {' and '.join(STARTED_EARLY)} start in the background")
        starting = Starting(stacks)
        for title, script in (("lint", "scripts/lint"), ("wheel on each Python", "scripts/try-pythons")):
            say(f"\n== {title}")
            subprocess.run([script], check=True)
        starting.wait()
        lanes = planned()
        for name, patterns in BESIDE.items():
            say(f"\n== lane {name}: {patterns}")
        say(f"\n== lane {FIRST}: everything else")
        return Session(Place(ROOT, LOGS), stacks, say).run(lanes)
    finally:
        stacks.down(FIRST, *BESIDE)


class Starting:
    """Stacks that start in the background."""

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks
        self._error: StackDidNotStart | None = None
        self._thread = Thread(target=self._start, daemon=True)
        self._thread.start()

    def _start(self) -> None:
        try:
            self._stacks.up(*STARTED_EARLY)
        except StackDidNotStart as error:
            self._error = error

    def wait(self) -> None:
        """Wait until they work; raises StackDidNotStart."""
        self._thread.join()
        if self._error is not None:
            raise self._error


def planned() -> list[Lane]:
    """Say which lane runs which paths; the first one runs what no other names."""
    beside = [Lane(name, tuple(_paths(patterns.split()))) for name, patterns in BESIDE.items()]
    named = [path for lane in beside for path in lane.arguments]
    return [Lane(FIRST, tuple(f"--ignore={path}" for path in named)), *beside]


def _paths(patterns: list[str]) -> list[str]:
    found = []
    for pattern in patterns:
        paths = sorted(str(path) for path in Path("tests").glob(pattern))
        assert paths, f"a lane names tests/{pattern}, which does not exist"
        found += paths
    return found


def say(text: str) -> None:
    """Print at once; what stands on stdout is the order of events."""
    print(text, flush=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
