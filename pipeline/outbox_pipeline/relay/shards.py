"""Which worker owns which shard. Pure.

A shard's owner holds its session-level advisory lock; a worker shows itself by a shared lock that
all workers hold. There is no coordinator: each worker reads both and releases or takes shards until it
has its share.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardMoves:
    """The shards a worker should release, and those it may try to take."""

    release: tuple[int, ...] = ()
    take: tuple[int, ...] = ()


def moves(
    shards: int,
    workers: int,
    *,
    mine: Collection[int],
    held: Collection[int],
    rng: random.Random,
) -> ShardMoves:
    """Decide what to release and to take, so that no worker has more than its share, rounded up.

    `held` are the shards that any worker owns, `mine` among them. Free shards are taken in random order,
    since other workers decide at the same moment.
    """
    share = -(-shards // max(1, workers))
    if len(mine) > share:
        return ShardMoves(release=tuple(sorted(mine)[share - len(mine) :]))
    free = [shard for shard in range(shards) if shard not in held]
    rng.shuffle(free)
    return ShardMoves(take=tuple(free[: share - len(mine)]))
