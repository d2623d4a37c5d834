"""The measured figures and goals as values, and the arithmetic on them. No I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` of all values do not exceed (nearest rank).

    Raises ValueError for no values.
    """
    if not values:
        raise ValueError("a percentile of nothing")
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1]


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table: the rounds of one variant of one piece of work."""

    work: str
    variant: str
    rounds: tuple[float, ...]
    unit: str
    more_is_better: bool
    reference: bool = False  # the other variants of this work are shown as a ratio to this one

    @property
    def median(self) -> float:
        """The middle of the rounds."""
        return median(self.rounds)

    @property
    def best(self) -> float:
        """The best round, which other load on the machine disturbed least."""
        return max(self.rounds) if self.more_is_better else min(self.rounds)


@dataclass(frozen=True, slots=True)
class Goal:
    """The ratio to the reference that should be reached; with `absolute`, the median."""

    work: str
    variant: str
    at_least: float | None = None
    at_most: float | None = None
    absolute: bool = False

    def met(self, value: float) -> bool:
        """Whether a measured value reaches the goal."""
        return (self.at_least is None or value >= self.at_least) and (
            self.at_most is None or value <= self.at_most
        )

    def __str__(self) -> str:
        return f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"


@dataclass(frozen=True, slots=True)
class Line:
    """A figure with its ratio to the reference and its goal."""

    figure: Figure
    ratio: float | None
    goal: Goal | None

    @property
    def verdict(self) -> str:
        """`met` or `missed`; empty without a goal."""
        if self.goal is None:
            return ""
        value = self.figure.median if self.goal.absolute else self.ratio
        return "" if value is None else "met" if self.goal.met(value) else "missed"


def lines(figures: Sequence[Figure], goals: Sequence[Goal]) -> list[Line]:
    """Pair every figure with the reference of its work and its goal.

    The ratio is the median of the ratios round by round, where both ran equally many rounds: what
    disturbed one round disturbed both halves of it.
    """
    references = {f.work: f for f in figures if f.reference}
    wanted = {(g.work, g.variant): g for g in goals}
    return [Line(f, _ratio(f, references.get(f.work)), wanted.get((f.work, f.variant))) for f in figures]


def _ratio(figure: Figure, reference: Figure | None) -> float | None:
    if reference is None or reference is figure:
        return None
    if len(figure.rounds) != len(reference.rounds):
        return figure.median / reference.median
    return median(a / b for a, b in zip(figure.rounds, reference.rounds, strict=True))
