"""A whole run: the lanes, then what failed once more, then what it all means."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from test_lanes import machine
from test_lanes.judgement import Judgement, LaneEnd, closing, judge, to_repeat
from test_lanes.lanes import Lane, Place, run_lanes
from test_lanes.report import Case, Outcome
from test_lanes.stacks import StackDidNotStart

AGAIN = "test-again"  # the stack that failed tests run on once more
LANE_SECONDS = 60 * 60.0
AGAIN_SECONDS = 20 * 60.0


class Servers(Protocol):
    """What starts and stops the stacks."""

    def fresh(self, name: str) -> None:
        """Start a stack without anything that was left in it; raises StackDidNotStart."""

    def down(self, *names: str) -> None:
        """Stop stacks, whether or not they run."""


@dataclass(frozen=True, slots=True)
class Session:
    """How to run all lanes. `quiet_seconds`: how long to wait for a quiet machine before tests run again."""

    place: Place
    servers: Servers
    say: Callable[[str], None]
    quiet_seconds: float = 120.0

    def run(self, lanes: Sequence[Lane]) -> int:
        """Run the lanes, then once more what may be unsteady; say what it means and return the exit code."""
        ends = run_lanes(lanes, self.place, limit_seconds=LANE_SECONDS, say=self.say, show=self._show)
        again = to_repeat(ends)
        repeats: dict[str, Outcome] = {}
        if again:
            self.servers.down(*(lane.name for lane in lanes))
            repeats = self._repeat(again)
        return self._close(ends, judge(ends, repeats))

    def _repeat(self, tests: Sequence[Case]) -> dict[str, Outcome]:
        self.say(f"\n== once more, alone: {len(tests)}")
        quiet = machine.wait_until_quiet(self.quiet_seconds, clock=time.monotonic, sleep=time.sleep)
        if not quiet:
            self.say(f"the machine is still busy: load per core {machine.load_per_core():.1f}")
        outcomes: dict[str, Outcome] = {}
        try:
            for number, test in enumerate(tests, 1):
                outcome = self._run_alone(test, f"{AGAIN}-{number}")
                self.say(f"{test.name}: {outcome.value if outcome else 'did not run'}")
                if outcome:
                    outcomes[test.name] = outcome
        except StackDidNotStart as error:
            self.say(f"the stack for it did not start:\n{error}")
        finally:
            self.servers.down(AGAIN)
        return outcomes

    def _run_alone(self, test: Case, name: str) -> Outcome | None:
        """Run one test in a process of its own, on a stack that nobody used before; None: it did not run."""
        self.servers.fresh(AGAIN)
        lane = Lane(name, (test.name,), stack=AGAIN)
        (end,) = run_lanes([lane], self.place, limit_seconds=AGAIN_SECONDS, say=self.say, show=_nothing)
        found = {case.name: case.outcome for case in end.tests or ()}
        outcome = found.get(test.name)
        if outcome is Outcome.FAILED:
            self._show(end)
        return Outcome.FAILED if outcome is not None and end.exit_code != 0 else outcome

    def _show(self, end: LaneEnd) -> None:
        self.say(f"\n== lane {end.name}")
        with open(end.log, encoding="utf-8", errors="replace") as log:
            self.say(log.read().rstrip())

    def _close(self, ends: Sequence[LaneEnd], judgement: Judgement) -> int:
        self.say("")
        for end in ends:
            minutes, seconds = divmod(round(end.seconds), 60)
            self.say(f"lane {end.name}: {len(end.tests or ())} tests in {minutes} min {seconds:02d} s")
        self.say("\n" + closing(judgement))
        return judgement.exit_code


def _nothing(end: LaneEnd) -> None:
    pass
