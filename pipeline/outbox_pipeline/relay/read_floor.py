"""From where a shard is read: below its floor is no row, and none will ever come. Pure.

Deleted rows stay in the index as long as somebody's snapshot may see them. Read from the beginning,
each batch would pass all of them, ten minutes of events after ten minutes of a forgotten transaction.
So a worker remembers up to where everything is settled. A row that commits late must not be below:
its writer took the position from the sequence while it held a lock on the outbox. Whoever holds
one after the sequence was read may still commit a lower position; when all of those have ended, every
row up to there can be seen or never will be (a lock goes after the commit is visible).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

# After this a shard is read from the beginning again, for rows that somebody put at an old position by hand.
FORGET_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Horizon:
    """The last position that was given out, and then the transactions that may write into the outbox.

    `position` None: it does not tell what was given out (the sequence hands out blocks to sessions).
    """

    position: int | None
    writers: frozenset[str]


@dataclass(slots=True)
class ReadFloors:
    """The floors of the shards of one session: they end with its locks."""

    _lowest: dict[int, int] = field(default_factory=dict)
    _candidate: Horizon | None = None
    _since: float = 0.0

    def of(self, shard: int) -> int:
        """Say from which position on the shard has to be read; 0: from the beginning."""
        return self._lowest.get(shard, 0)

    def forget(self, shard: int | None = None) -> None:
        """Begin again: for a shard, since it was somebody else's meanwhile, or for all."""
        if shard is None:
            self._lowest.clear()
            self._candidate = None
        else:
            self._lowest.pop(shard, None)

    def settled(self, seen: Horizon, now: float) -> int | None:
        """Take a new look; say up to which position everything is settled, None where nothing new is."""
        if now >= self._since + FORGET_SECONDS:
            self.forget()
            self._since = now
        candidate = self._candidate
        if candidate is not None and candidate.writers & seen.writers:
            return None
        self._candidate = seen
        return candidate.position if candidate is not None else None

    def lift(self, lowest: Mapping[int, int]) -> None:
        """Remember where the first rows are, read after `settled` had answered."""
        self._lowest.update(lowest)
