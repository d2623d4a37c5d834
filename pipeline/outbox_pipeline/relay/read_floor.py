"""The read floor of a shard: the position below which it has no row, and never will have one. Pure.

Deleted rows stay in the index as long as the snapshot of some transaction may see them. A read from the
beginning would pass all of them for each batch: ten minutes of events after ten minutes of a forgotten
transaction. So a worker remembers the position up to which everything is settled. A row that commits
late must not be below it. Its writer took the position from the sequence while it held a lock on the
outbox, so a transaction that holds such a lock after the sequence was read may still commit a lower
position. When all of those have ended, every row up to there is visible or never will be (PostgreSQL
releases a lock after the commit is visible).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

# After this a shard is read from the beginning again, for rows that a person inserted at an old position.
FORGET_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Horizon:
    """The sequence's last position, and the transactions that could write to the outbox after it was read.

    `position` None: unknown, because the sequence gives blocks of positions to sessions (CACHE).
    """

    position: int | None
    writers: frozenset[str]


@dataclass(slots=True)
class ReadFloors:
    """The read floors of one session's shards. They are valid as long as its locks."""

    _lowest: dict[int, int] = field(default_factory=dict)
    _candidate: Horizon | None = None
    _since: float = 0.0

    def of(self, shard: int) -> int:
        """Return the position from which the shard has to be read; 0: from the beginning."""
        return self._lowest.get(shard, 0)

    def forget(self, shard: int | None = None) -> None:
        """Reset the floor of a shard, which another worker may have owned meanwhile, or of all."""
        if shard is None:
            self._lowest.clear()
            self._candidate = None
        else:
            self._lowest.pop(shard, None)

    def settled(self, seen: Horizon, now: float) -> int | None:
        """Take a new horizon; return the position up to which all is settled, None: not known."""
        if now >= self._since + FORGET_SECONDS:
            self.forget()
            self._since = now
        candidate = self._candidate
        if candidate is not None and candidate.writers & seen.writers:
            return None
        self._candidate = seen
        return candidate.position if candidate is not None else None

    def raise_to(self, lowest: Mapping[int, int]) -> None:
        """Remember the lowest positions of the shards, read after the call of `settled`."""
        self._lowest.update(lowest)
