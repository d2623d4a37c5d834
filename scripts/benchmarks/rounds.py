"""The order in which ways of doing the same work take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Say = Callable[[str], None]


def rotated(ways: Sequence[str], by: int) -> list[str]:
    """Start each round with another way, so that none always runs on the colder machine."""
    by %= len(ways)
    return [*ways[by:], *ways[:by]]
