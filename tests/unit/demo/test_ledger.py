"""The demo's ledger: what it says of ids that are missing, repeated or should not exist."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from demo_run.ledger import Ledger, table

A, B, C, D = (UUID(int=number) for number in range(1, 5))
GOOD = Ledger(orders=3, written=[A, B, C], delivered=[A, B, C], claimed=[A, B, C], applied=[A, B, C])


def test_a_ledger_that_holds() -> None:
    assert GOOD.holds
    assert GOOD.complaints() == []
    assert GOOD.last_line() == "demo: written=3 delivered=3 applied=3 missing=0 duplicated=0"


def test_repeated_deliveries_are_no_fault_and_are_shown_apart() -> None:
    ledger = replace(GOOD, delivered=[A, B, A, C, A])
    assert ledger.holds
    assert ledger.redelivered == 2
    assert ledger.last_line() == GOOD.last_line()
    assert ledger.rows()[1] == ("records in the topics", "3", "2")


@pytest.mark.parametrize(
    ("ledger", "line", "complaint"),
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
            f"1 invoices too many, for example {B}",
        ),
        (
            replace(GOOD, delivered=[A, B, C, D]),
            "demo: written=3 delivered=4 applied=3 missing=0 duplicated=0",
            f"events of transactions that were rolled back got out, for example {D}",
        ),
        (
            replace(GOOD, claimed=[A, B]),
            "demo: written=3 delivered=3 applied=3 missing=0 duplicated=0",
            f"1 invoices have no inbox row, for example {C}",
        ),
        (
            Ledger(orders=3, written=[A, B], delivered=[A, B], claimed=[A, B], applied=[A, B]),
            "demo: written=2 delivered=2 applied=2 missing=0 duplicated=0",
            "the shop committed 2 orders of 3",
        ),
        (
            Ledger(orders=3, written=[], delivered=[], claimed=[], applied=[]),
            "demo: written=0 delivered=0 applied=0 missing=0 duplicated=0",
            "the shop committed 0 orders of 3",
        ),
        (
            # The counts alone would look right: one is lost, another should not exist.
            replace(GOOD, delivered=[A, B, D], claimed=[A, B, D], applied=[A, B, D]),
            "demo: written=3 delivered=3 applied=3 missing=1 duplicated=0",
            f"events of transactions that were rolled back got out, for example {D}",
        ),
    ],
)
def test_a_ledger_that_does_not_hold_says_which_id(ledger: Ledger, line: str, complaint: str) -> None:
    assert not ledger.holds
    assert ledger.last_line() == line
    assert complaint in ledger.complaints()


def test_the_table_is_aligned() -> None:
    assert table([("a", "10,000", "0"), ("longer", "9", "12")], ("place", "distinct", "again")) == [
        "place   distinct  again",
        "------  --------  -----",
        "a         10,000      0",
        "longer         9     12",
    ]
