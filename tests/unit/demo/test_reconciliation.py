"""The demo's comparison of ids: what it reports for missing, repeated and unexpected ids."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from demo_run.reconciliation import Reconciliation, table

A, B, C, D = (UUID(int=number) for number in range(1, 5))
GOOD = Reconciliation(orders=3, written=[A, B, C], delivered=[A, B, C], claimed=[A, B, C], applied=[A, B, C])


def test_a_run_that_passed() -> None:
    assert GOOD.passed
    assert GOOD.problems() == []
    assert GOOD.last_line() == "demo: written=3 delivered=3 applied=3 missing=0 duplicated=0"


def test_redelivered_records_are_counted_separately_and_are_no_failure() -> None:
    result = replace(GOOD, delivered=[A, B, A, C, A])
    assert result.passed
    assert result.redelivered == 2
    assert result.last_line() == GOOD.last_line()
    assert result.rows()[1] == ("records in the topics", "3", "2")


@pytest.mark.parametrize(
    ("result", "line", "problem"),
    [
        (
            replace(GOOD, delivered=[A, C], claimed=[A, C], applied=[A, C]),
            "demo: written=3 delivered=2 applied=2 missing=1 duplicated=0",
            f"1 events never reached a topic, for example {B}",
        ),
        (
            replace(GOOD, claimed=[A, B], applied=[A, B]),
            "demo: written=3 delivered=3 applied=2 missing=1 duplicated=0",
            f"1 events in the topics have no invoice, for example {C}",
        ),
        (
            replace(GOOD, applied=[A, B, B, C]),
            "demo: written=3 delivered=3 applied=3 missing=0 duplicated=1",
            f"1 surplus invoices, for example {B}",
        ),
        (
            replace(GOOD, delivered=[A, B, C, D]),
            "demo: written=3 delivered=4 applied=3 missing=0 duplicated=0",
            f"events of rolled-back transactions were delivered, for example {D}",
        ),
        (
            replace(GOOD, claimed=[A, B]),
            "demo: written=3 delivered=3 applied=3 missing=0 duplicated=0",
            f"1 invoices have no inbox row, for example {C}",
        ),
        (
            Reconciliation(orders=3, written=[A, B], delivered=[A, B], claimed=[A, B], applied=[A, B]),
            "demo: written=2 delivered=2 applied=2 missing=0 duplicated=0",
            "the shop committed 2 orders of 3",
        ),
        (
            Reconciliation(orders=3, written=[], delivered=[], claimed=[], applied=[]),
            "demo: written=0 delivered=0 applied=0 missing=0 duplicated=0",
            "the shop committed 0 orders of 3",
        ),
        (
            # The counts alone would look right: one is lost, another should not exist.
            replace(GOOD, delivered=[A, B, D], claimed=[A, B, D], applied=[A, B, D]),
            "demo: written=3 delivered=3 applied=3 missing=1 duplicated=0",
            f"events of rolled-back transactions were delivered, for example {D}",
        ),
    ],
)
def test_a_failed_run_names_an_example_id(result: Reconciliation, line: str, problem: str) -> None:
    assert not result.passed
    assert result.last_line() == line
    assert problem in result.problems()


def test_the_table_is_aligned() -> None:
    assert table([("a", "10,000", "0"), ("longer", "9", "12")], ("stage", "distinct", "again")) == [
        "stage   distinct  again",
        "------  --------  -----",
        "a         10,000      0",
        "longer         9     12",
    ]
