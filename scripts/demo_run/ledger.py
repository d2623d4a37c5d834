"""Compare the ids in the places an event passes. Pure: ids in, a verdict out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Ledger:
    """The ids of one run in each place, in a list each: an id that is there twice is in it twice."""

    orders: int  # how many the shop was told to commit
    written: Sequence[UUID]  # rows of the outbox
    delivered: Sequence[UUID]  # records in the topics
    claimed: Sequence[UUID]  # rows of the inbox
    applied: Sequence[UUID]  # invoices

    @property
    def missing(self) -> list[UUID]:
        """Events that were written and have no effect, oldest first."""
        return sorted(set(self.written) - set(self.applied))

    @property
    def duplicated(self) -> int:
        """Effects beyond the first of an event."""
        return len(self.applied) - len(set(self.applied))

    @property
    def redelivered(self) -> int:
        """Records beyond the first of an event: what the inbox has to absorb."""
        return len(self.delivered) - len(set(self.delivered))

    @property
    def unexpected(self) -> list[UUID]:
        """Events that were delivered or have an effect though their transaction was rolled back."""
        return sorted((set(self.delivered) | set(self.applied)) - set(self.written))

    @property
    def holds(self) -> bool:
        """Whether every order that was committed has exactly one effect, and nothing else has one."""
        places = (self.written, self.delivered, self.claimed, self.applied)
        return (
            all(len(set(place)) == self.orders for place in places)
            and not (self.missing or self.unexpected)
            and self.duplicated == 0
        )

    def rows(self) -> list[tuple[str, str, str]]:
        """Show the places as rows: place, distinct ids, repetitions."""
        return [
            _row("outbox rows, committed", self.written),
            _row("records in the topics", self.delivered),
            _row("inbox rows", self.claimed),
            _row("invoices", self.applied),
        ]

    def last_line(self) -> str:
        """Write the line a script looks for. All counts are of distinct ids."""
        return (
            f"demo: written={len(set(self.written))} delivered={len(set(self.delivered))}"
            f" applied={len(set(self.applied))} missing={len(self.missing)} duplicated={self.duplicated}"
        )

    def complaints(self) -> list[str]:
        """Say in one line each what is wrong; nothing when the ledger holds."""
        written = len(set(self.written))
        lost = set(self.written) - set(self.delivered)
        unhandled = set(self.missing) - lost
        unclaimed = set(self.applied) - set(self.claimed)
        found = [
            (written != self.orders, f"the shop committed {written} orders of {self.orders}", ()),
            (lost, f"{len(lost)} events never reached a topic", lost),
            (unhandled, f"{len(unhandled)} events in the topics have no invoice", unhandled),
            (self.duplicated, f"{self.duplicated} invoices too many", _repeated(self.applied)),
            (self.unexpected, "events of transactions that were rolled back got out", self.unexpected),
            (unclaimed, f"{len(unclaimed)} invoices have no inbox row", unclaimed),
        ]
        return [f"{text}{_examples(ids)}" for wrong, text, ids in found if wrong]


def _row(place: str, ids: Sequence[UUID]) -> tuple[str, str, str]:
    distinct = len(set(ids))
    return place, f"{distinct:,}", f"{len(ids) - distinct:,}"


def _repeated(ids: Iterable[UUID]) -> set[UUID]:
    return {each for each, times in Counter(ids).items() if times > 1}


def _examples(ids: Iterable[UUID]) -> str:
    first = [str(each) for each in sorted(ids)[:3]]
    return f", for example {', '.join(first)}" if first else ""


def table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> list[str]:
    """Lay out rows under a header: the first column to the left, numbers to the right."""
    lines = [header, *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(header))]
    laid = [
        "  ".join(cell.rjust(width) if at else cell.ljust(width) for at, (cell, width) in enumerate(pairs))
        for pairs in (zip(line, widths, strict=True) for line in lines)
    ]
    return [laid[0], "  ".join("-" * width for width in widths), *laid[1:]]
