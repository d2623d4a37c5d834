"""The order in which the variants of one piece of work take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Log = Callable[[str], None]


def rotated(variants: Sequence[str], by: int) -> list[str]:
    """Start each round with another variant, so that none always runs first."""
    by %= len(variants)
    return [*variants[by:], *variants[:by]]
