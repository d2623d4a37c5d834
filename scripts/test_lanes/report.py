"""Read pytest's JUnit report: which tests ran, and how each ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from xml.etree import ElementTree

CAUSE_LINES = 3
CAUSE_WIDTH = 200


class Outcome(Enum):
    """How a test ended."""

    PASSED = "passed"
    FAILED = "failed"  # the test itself, what it needed, or what cleans up after it
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Case:
    """One test that ran: a `testcase` of the report.

    `name` is what pytest takes to run it again, `cause` the first lines of its failure.
    """

    name: str
    outcome: Outcome
    cause: str = ""


def read_report(text: str) -> tuple[Case, ...] | None:
    """Give the tests of a JUnit report in their order; None when it is no complete report. Pure.

    A test that failed and whose clean-up failed as well is one test, with the first cause. A file that
    could not be collected appears as a failed test with the file's name.
    """
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return None
    cases: dict[str, Case] = {}
    for element in root.iter("testcase"):
        case = _read_case(element)
        earlier = cases.get(case.name)
        if earlier is None or earlier.outcome is not Outcome.FAILED:
            cases[case.name] = case
    return tuple(cases.values())


def _read_case(element: ElementTree.Element) -> Case:
    name = node_id(element.get("classname", ""), element.get("name", ""))
    for kind in ("failure", "error"):
        found = element.find(kind)
        if found is not None:
            return Case(name, Outcome.FAILED, first_lines(found.get("message") or found.text or ""))
    skipped = element.find("skipped") is not None
    return Case(name, Outcome.SKIPPED if skipped else Outcome.PASSED)


def node_id(classname: str, name: str) -> str:
    """Say how pytest calls a test: `tests.unit.test_x.TestY` and `test_z[1]` are `tests/unit/test_x.py::...`.

    Modules are in lower case and test classes are not; that tells them apart. Pure.
    """
    if not classname:
        return name.replace(".", "/") + ".py"
    parts = classname.split(".")
    classes = [part for part in parts if part[:1].isupper()]
    file = "/".join(part for part in parts if not part[:1].isupper()) + ".py"
    return "::".join([file, *classes, name])


def first_lines(text: str) -> str:
    """Shorten a failure to its first lines, each of a bounded width. Pure."""
    lines = [line.strip()[:CAUSE_WIDTH] for line in text.splitlines() if line.strip()]
    return "\n".join(lines[:CAUSE_LINES])
