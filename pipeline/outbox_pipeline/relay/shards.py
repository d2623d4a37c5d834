"""Which worker carries which shard. Pure.

A shard's owner holds its session-level advisory lock; a worker shows itself by a shared lock that
all workers hold. Nobody assigns: each worker looks at both and gives or takes until it has its share.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardMoves:
    """What a worker should give back, and what it may try to take."""

    give: tuple[int, ...] = ()
    take: tuple[int, ...] = ()


def moves(
    shards: int,
    workers: int,
    *,
    mine: Collection[int],
    held: Collection[int],
    rng: random.Random,
) -> ShardMoves:
    """Decide what to give and to take, so that no worker has more than its share, rounded up.

    `held` are the shards that anybody owns, mine among them. Takes in random order, since others
    look at the same moment.
    """
    share = -(-shards // max(1, workers))
    if len(mine) > share:
        return ShardMoves(give=tuple(sorted(mine)[share - len(mine) :]))
    free = [shard for shard in range(shards) if shard not in held]
    rng.shuffle(free)
    return ShardMoves(take=tuple(free[: share - len(mine)]))
