"""Run pytest in lanes beside each other, each with its own stack, log and JUnit report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from test_lanes.judgement import LaneEnd
from test_lanes.report import Case, read_report

LOOK_SECONDS = 0.5
PROGRESS_SECONDS = 30.0
END_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Lane:
    """Tests that run one after the other. `arguments` go to pytest; the stack is called like the lane."""

    name: str
    arguments: tuple[str, ...]
    stack: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where tests run: the root that pytest starts in, and the folder for logs and reports."""

    root: Path
    logs: Path

    def log(self, name: str) -> Path:
        """The output of a lane."""
        return self.logs / f"lane-{name}.log"

    def report(self, name: str) -> Path:
        """The JUnit report of a lane."""
        return self.logs / f"{name}.xml"

    def tests(self, name: str) -> tuple[Case, ...] | None:
        """Read a lane's report; None when it left none."""
        try:
            return read_report(self.report(name).read_text("utf-8"))
        except (OSError, UnicodeDecodeError):
            return None


class Running:
    """A lane that runs, from its start to its end."""

    def __init__(self, lane: Lane, place: Place) -> None:
        self.lane = lane
        self._place = place
        self._started = time.monotonic()
        place.report(lane.name).unlink(missing_ok=True)  # one of an earlier run must not speak for this one
        report = f"--junitxml={place.report(lane.name)}"
        command = [sys.executable, "-m", "pytest", "--durations=15", report, *lane.arguments]
        with place.log(lane.name).open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=place.root,
                env={
                    **os.environ,
                    "OUTBOX_TEST_STACK": lane.stack or lane.name,
                    "PYTHONUNBUFFERED": "1",
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self._started

    @property
    def ended(self) -> bool:
        """Whether pytest has ended."""
        return self._process.poll() is not None

    def at(self) -> str:
        """Say what it is at: the last line of its output."""
        text = self._place.log(self.lane.name).read_bytes()[-400:].decode("utf-8", "replace").rstrip()
        return text.rsplit("\n", 1)[-1][-100:]

    def interrupt(self) -> None:
        """End it as Ctrl-C would, so that its tests clean up; with SIGKILL if that does not help."""
        for number in (signal.SIGINT, signal.SIGKILL):
            if not self.ended:
                self._process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(END_SECONDS)

    def end(self, *, in_time: bool = True) -> LaneEnd:
        """Say how it ended, with its report. `in_time`: false when it had to be interrupted."""
        name, code = self.lane.name, self._process.returncode
        tests, log = self._place.tests(name), str(self._place.log(name))
        return LaneEnd(name, code if in_time else None, tests, log, self.seconds)


def run_lanes(
    lanes: Sequence[Lane],
    place: Place,
    *,
    limit_seconds: float,
    say: Callable[[str], None],
    show: Callable[[LaneEnd], None],
) -> tuple[LaneEnd, ...]:
    """Run lanes beside each other and give their ends, in the order of the lanes.

    `say` hears every half minute what each lane is at, `show` of each lane as soon as it has ended. A lane
    that takes longer than the limit is interrupted. When this is interrupted itself, so are the lanes.
    """
    running: list[Running] = []
    ends: dict[str, LaneEnd] = {}
    try:
        running += [Running(lane, place) for lane in lanes]
        told = time.monotonic()
        while len(ends) < len(running):
            time.sleep(LOOK_SECONDS)
            for lane in [one for one in running if one.lane.name not in ends]:
                in_time = lane.seconds <= limit_seconds
                if not in_time:
                    lane.interrupt()
                if lane.ended:
                    ends[lane.lane.name] = lane.end(in_time=in_time)
                    show(ends[lane.lane.name])
            if time.monotonic() - told >= PROGRESS_SECONDS:
                told = time.monotonic()
                for lane in [one for one in running if one.lane.name not in ends]:
                    say(f"{lane.seconds:5.0f} s  lane {lane.lane.name}: {lane.at()}")
    finally:
        for lane in running:
            lane.interrupt()
    return tuple(ends[lane.name] for lane in lanes)
