"""Compare the event ids found in the outbox, the topics, the inbox and the invoices. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The event ids of one run, one list per stage; an id that was found twice is listed twice."""

    orders: int  # number of orders the shop was asked to commit
    written: Sequence[UUID]  # rows of the outbox
    delivered: Sequence[UUID]  # records in the topics
    claimed: Sequence[UUID]  # rows of the inbox
    applied: Sequence[UUID]  # invoices

    @property
    def missing(self) -> list[UUID]:
        """Committed events without an invoice, oldest first."""
        return sorted(set(self.written) - set(self.applied))

    @property
    def duplicated(self) -> int:
        """Number of invoices beyond the first one of each event."""
        return len(self.applied) - len(set(self.applied))

    @property
    def redelivered(self) -> int:
        """Number of records beyond the first one of each event, which the inbox must ignore."""
        return len(self.delivered) - len(set(self.delivered))

    @property
    def unexpected(self) -> list[UUID]:
        """Events that were delivered or invoiced although their transaction was rolled back."""
        return sorted((set(self.delivered) | set(self.applied)) - set(self.written))

    @property
    def passed(self) -> bool:
        """Whether every committed order has exactly one invoice, and nothing else has one."""
        stages = (self.written, self.delivered, self.claimed, self.applied)
        return (
            all(len(set(ids)) == self.orders for ids in stages)
            and not (self.missing or self.unexpected)
            and self.duplicated == 0
        )

    def rows(self) -> list[tuple[str, str, str]]:
        """Give one table row per stage: its name, distinct ids, repetitions."""
        return [
            _row("outbox rows, committed", self.written),
            _row("records in the topics", self.delivered),
            _row("inbox rows", self.claimed),
            _row("invoices", self.applied),
        ]

    def last_line(self) -> str:
        """Format the summary line for scripts. All counts are of distinct ids."""
        return (
            f"demo: written={len(set(self.written))} delivered={len(set(self.delivered))}"
            f" applied={len(set(self.applied))} missing={len(self.missing)} duplicated={self.duplicated}"
        )

    def problems(self) -> list[str]:
        """Describe each discrepancy in one line; empty when the run passed."""
        written = len(set(self.written))
        lost = set(self.written) - set(self.delivered)
        unhandled = set(self.missing) - lost
        unclaimed = set(self.applied) - set(self.claimed)
        found = [
            (written != self.orders, f"the shop committed {written} orders of {self.orders}", ()),
            (lost, f"{len(lost)} events never reached a topic", lost),
            (unhandled, f"{len(unhandled)} events in the topics have no invoice", unhandled),
            (self.duplicated, f"{self.duplicated} surplus invoices", _repeated(self.applied)),
            (self.unexpected, "events of rolled-back transactions were delivered", self.unexpected),
            (unclaimed, f"{len(unclaimed)} invoices have no inbox row", unclaimed),
        ]
        return [f"{text}{_examples(ids)}" for wrong, text, ids in found if wrong]


def _row(stage: str, ids: Sequence[UUID]) -> tuple[str, str, str]:
    distinct = len(set(ids))
    return stage, f"{distinct:,}", f"{len(ids) - distinct:,}"


def _repeated(ids: Iterable[UUID]) -> set[UUID]:
    return {each for each, times in Counter(ids).items() if times > 1}


def _examples(ids: Iterable[UUID]) -> str:
    first = [str(each) for each in sorted(ids)[:3]]
    return f", for example {', '.join(first)}" if first else ""


def table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> list[str]:
    """Align rows under a header: the first column to the left, the others to the right."""
    lines = [header, *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(header))]
    aligned = [
        "  ".join(cell.rjust(width) if at else cell.ljust(width) for at, (cell, width) in enumerate(pairs))
        for pairs in (zip(line, widths, strict=True) for line in lines)
    ]
    return [aligned[0], "  ".join("-" * width for width in widths), *aligned[1:]]
