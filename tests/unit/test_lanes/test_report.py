"""Reading pytest's JUnit report: names that pytest takes again, outcomes, causes."""

from __future__ import annotations

import pytest

from test_lanes.report import CAUSE_WIDTH, Case, Outcome, first_lines, node_id, read_report

REPORT = """<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests"><testsuite name="pytest">
<testcase classname="tests.unit.test_a" name="test_good" time="0.001" />
<testcase classname="tests.integration.test_b" name="test_bad[1-x.y]" time="0.001">
  <failure message="AssertionError: lost&#10;assert 1 == 2">long text</failure></testcase>
<testcase classname="tests.integration.test_b" name="test_bad[1-x.y]" time="0.001">
  <error message="failed on teardown">the database is in use</error></testcase>
<testcase classname="tests.scenarios.test_c" name="test_cleanup" time="0.001" />
<testcase classname="tests.scenarios.test_c" name="test_cleanup" time="0.001">
  <error message="failed on teardown with &quot;OSError: gone&quot;">text</error></testcase>
<testcase classname="tests.unit.test_a" name="test_left_out" time="0.001"><skipped message="why" /></testcase>
<testcase classname="" name="tests.integration.test_d" time="0.0">
  <error message="collection failure">ImportError</error></testcase>
</testsuite></testsuites>"""


def test_a_report_gives_each_test_once_with_the_first_cause() -> None:
    assert read_report(REPORT) == (
        Case("tests/unit/test_a.py::test_good", Outcome.PASSED),
        Case(
            "tests/integration/test_b.py::test_bad[1-x.y]",
            Outcome.FAILED,
            "AssertionError: lost\nassert 1 == 2",
        ),
        Case(
            "tests/scenarios/test_c.py::test_cleanup",
            Outcome.FAILED,
            'failed on teardown with "OSError: gone"',
        ),
        Case("tests/unit/test_a.py::test_left_out", Outcome.SKIPPED),
        Case("tests/integration/test_d.py", Outcome.FAILED, "collection failure"),
    )


@pytest.mark.parametrize("text", ["", "no xml", REPORT[:400]])
def test_half_a_report_is_none(text: str) -> None:
    assert read_report(text) is None


def test_the_name_of_a_test_in_a_class() -> None:
    assert node_id("tests.unit.test_a.TestThis.TestThat", "test_it") == (
        "tests/unit/test_a.py::TestThis::TestThat::test_it"
    )


def test_a_cause_is_bounded() -> None:
    assert first_lines("\n\n  one\ntwo\n\nthree\nfour") == "one\ntwo\nthree"
    assert first_lines("x" * 10_000) == "x" * CAUSE_WIDTH
