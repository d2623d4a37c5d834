"""Decide what a run of all lanes means: passed, passed with unsteady tests, or failed. All of it pure.

A red run has to mean a fault. Tests with real servers share a busy machine, so those that failed run once
more, alone; green then makes a test `unsteady`, which is shown and counted, never silent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from test_lanes.report import Case, Outcome

REPEATED_FOLDERS = ("tests/integration/", "tests/scenarios/", "tests/acceptance/")
UNSTEADY_ALLOWED = 2
REPEATS_AT_MOST = 10  # with more failures than these the run is red whatever they would say


class PytestExit(IntEnum):
    """pytest's exit codes after which its report tells the whole story; every other one is a crash."""

    PASSED = 0
    FAILED = 1


@dataclass(frozen=True, slots=True)
class LaneEnd:
    """How a lane ended. `exit_code` None: it was ended from outside; `tests` None: it left no report."""

    name: str
    exit_code: int | None
    tests: tuple[Case, ...] | None
    log: str
    seconds: float = 0.0

    @property
    def failed(self) -> tuple[Case, ...]:
        """The tests that failed, in their order."""
        return tuple(test for test in self.tests or () if test.outcome is Outcome.FAILED)


@dataclass(frozen=True, slots=True)
class Unsteady:
    """A test that failed in its lane and passed alone. It is a fault to be found."""

    test: Case
    log: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the run means. `red` holds one line for each thing that makes it fail by itself."""

    unsteady: tuple[Unsteady, ...]
    red: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0: passed, perhaps with a few unsteady tests; 1: failed."""
        return int(bool(self.red) or len(self.unsteady) > UNSTEADY_ALLOWED)


def crash(lane: LaneEnd) -> str | None:
    """Say why a lane's failures cannot be judged one by one; None when they can.

    A lane that was killed, that ran into its time limit, whose stack did not start or whose files could not
    be collected has tests that never ran: running some of them again proves nothing.
    """
    if lane.exit_code is None:
        return "was ended at its time limit"
    if lane.exit_code < 0:
        return f"was ended by signal {-lane.exit_code}"
    if lane.exit_code not in tuple(PytestExit):
        return f"ended with exit code {lane.exit_code}"
    if not lane.tests:
        return f"ended with exit code {lane.exit_code} and left no report"
    if (lane.exit_code == PytestExit.FAILED) != bool(lane.failed):
        return f"ended with exit code {lane.exit_code}, its report says {len(lane.failed)} failed"
    return None


def is_repeated(test: Case) -> bool:
    """Say whether a failure of this test may be the machine's: only where real servers take part."""
    return test.name.startswith(REPEATED_FOLDERS)


def to_repeat(lanes: Sequence[LaneEnd]) -> tuple[Case, ...]:
    """List the tests that run once more, in their order."""
    failed = [test for lane in lanes for test in lane.failed if is_repeated(test)]
    return tuple(failed) if len(failed) <= REPEATS_AT_MOST else ()


def judge(lanes: Sequence[LaneEnd], repeats: Mapping[str, Outcome]) -> Judgement:
    """Judge a run. `repeats`: how the repeated tests ended, by name; one that is missing was not repeated."""
    unsteady: list[Unsteady] = []
    red: list[str] = []
    for lane in lanes:
        why = crash(lane)
        if why is not None:
            red.append(f"lane {lane.name} {why}; log: {lane.log}")
        for test in lane.failed:
            if repeats.get(test.name) is Outcome.PASSED and is_repeated(test):
                unsteady.append(Unsteady(test, lane.log))
            else:
                red.append(f"{test.name}: {_what_happened(test, repeats.get(test.name))}; log: {lane.log}")
    return Judgement(tuple(unsteady), tuple(red))


def _what_happened(test: Case, repeated: Outcome | None) -> str:
    if not is_repeated(test):
        return "failed"
    if repeated is None:
        return "failed, and did not run again"
    return (
        "failed twice" if repeated is Outcome.FAILED else f"failed, and was {repeated.value} when run again"
    )


def closing(judgement: Judgement) -> str:
    """Write the block that ends the output."""
    lines: list[str] = []
    if judgement.unsteady:
        lines.append(f"== unsteady: {len(judgement.unsteady)}")
        for found in judgement.unsteady:
            lines.append(found.test.name)
            lines += [f"  {line}" for line in found.test.cause.splitlines()]
            lines.append(f"  log: {found.log}")
        lines.append("")
    if judgement.exit_code == 0:
        lines.append(
            "== all passed" if not judgement.unsteady else "== passed; each unsteady test is a fault"
        )
        return "\n".join(lines)
    lines.append("== failed")
    lines += judgement.red
    if len(judgement.unsteady) > UNSTEADY_ALLOWED:
        lines.append(f"{len(judgement.unsteady)} tests are unsteady; {UNSTEADY_ALLOWED} are allowed")
    return "\n".join(lines)
