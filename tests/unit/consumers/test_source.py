"""The watch over offset commits, as pure time."""

from __future__ import annotations

import math

from outbox_consumers.source import CommitWatch


def test_offsets_that_wait_too_long_are_noticed_until_a_commit() -> None:
    now = 0.0
    watch = CommitWatch(45, lambda: now)
    now = 1000.0
    assert not watch.stalled()  # nothing stored, nothing to wait for
    watch.stored()
    now += 40
    watch.stored()
    assert not watch.stalled()
    now += 6
    assert watch.stalled()  # counted from the first that waits
    watch.committed()
    assert not watch.stalled()


def test_without_a_limit_nothing_is_noticed() -> None:
    now = 0.0
    watch = CommitWatch(math.inf, lambda: now)
    watch.stored()
    now = 1e9
    assert not watch.stalled()
