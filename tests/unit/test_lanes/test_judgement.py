"""What a run of all lanes means."""

from __future__ import annotations

import pytest

from test_lanes.judgement import REPEATS_AT_MOST, LaneEnd, closing, crash, judge, to_repeat
from test_lanes.report import Case, Outcome

GOOD = Case("tests/unit/test_good.py::test_it", Outcome.PASSED)
SKIPPED = Case("tests/integration/test_old.py::test_it", Outcome.SKIPPED)


def failed(number: int, folder: str = "integration") -> Case:
    return Case(
        f"tests/{folder}/test_it.py::test_{number}", Outcome.FAILED, "TimeoutError: too late\nline two"
    )


def lane(*tests: Case, name: str = "one", exit_code: int | None = None) -> LaneEnd:
    code = int(any(test.outcome is Outcome.FAILED for test in tests)) if exit_code is None else exit_code
    return LaneEnd(name, code, (GOOD, SKIPPED, *tests), f"logs/{name}.log")


def passed_again(*tests: Case) -> dict[str, Outcome]:
    return {test.name: Outcome.PASSED for test in tests}


def test_nothing_failed() -> None:
    judgement = judge([lane(), lane(name="two")], {})
    assert (judgement.exit_code, judgement.unsteady, judgement.red) == (0, (), ())
    assert closing(judgement) == "== all passed"


@pytest.mark.parametrize("folder", ["integration", "scenarios", "acceptance"])
@pytest.mark.parametrize(("number", "exit_code"), [(1, 0), (2, 0), (3, 1), (4, 1)])
def test_up_to_two_tests_may_be_unsteady(folder: str, number: int, exit_code: int) -> None:
    tests = [failed(at, folder) for at in range(number)]
    judgement = judge([lane(*tests)], passed_again(*tests))
    assert judgement.exit_code == exit_code
    assert len(judgement.unsteady) == number
    assert f"== unsteady: {number}" in closing(judgement)
    assert ("== failed" in closing(judgement)) == bool(exit_code)


def test_unsteady_tests_of_all_lanes_count_together() -> None:
    tests = [failed(at) for at in range(3)]
    ends = [lane(test, name=str(at)) for at, test in enumerate(tests)]
    assert judge(ends, passed_again(*tests)).exit_code == 1


def test_the_closing_block_names_test_cause_and_log() -> None:
    text = closing(judge([lane(failed(1))], passed_again(failed(1))))
    assert text.splitlines()[:5] == [
        "== unsteady: 1",
        "tests/integration/test_it.py::test_1",
        "  TimeoutError: too late",
        "  line two",
        "  log: logs/one.log",
    ]


@pytest.mark.parametrize("again", [Outcome.FAILED, Outcome.SKIPPED, None])
def test_what_does_not_pass_again_is_red(again: Outcome | None) -> None:
    judgement = judge([lane(failed(1))], {} if again is None else {failed(1).name: again})
    assert judgement.exit_code == 1
    assert judgement.unsteady == ()
    assert failed(1).name in closing(judgement)


@pytest.mark.parametrize("folder", ["unit", "architecture", "conformance", "unit/integration"])
def test_tests_without_servers_are_red_at_once(folder: str) -> None:
    test = failed(1, folder)
    assert to_repeat([lane(test)]) == ()
    assert judge([lane(test)], passed_again(test)).exit_code == 1


@pytest.mark.parametrize("code", [-11, -9, 2, 3, 4, 5, 139])
def test_a_lane_that_crashed_is_red_whatever_passes_again(code: int) -> None:
    end = lane(failed(1), exit_code=code)
    assert judge([end], passed_again(failed(1))).exit_code == 1
    assert crash(end)


@pytest.mark.parametrize(
    "end",
    [
        LaneEnd("one", 1, None, "log"),
        LaneEnd("one", 0, None, "log"),
        LaneEnd("one", 0, (), "log"),
        LaneEnd("one", None, (GOOD,), "log"),
        LaneEnd("one", 1, (GOOD,), "log"),
        LaneEnd("one", 0, (failed(1),), "log"),
    ],
)
def test_a_report_that_is_missing_or_contradicts_the_exit_code_is_red(end: LaneEnd) -> None:
    assert judge([end], passed_again(failed(1))).exit_code == 1


def test_many_failures_are_not_repeated() -> None:
    tests = [failed(at) for at in range(REPEATS_AT_MOST + 1)]
    assert to_repeat([lane(*tests)]) == ()
    assert to_repeat([lane(*tests[1:])]) == tuple(tests[1:])
    assert judge([lane(*tests)], {}).exit_code == 1
