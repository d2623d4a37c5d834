"""A worker killed at each step of its work: a read_committed reader sees every event once, in order."""

from __future__ import annotations

import signal

import pytest

from fix_relay import NewRelayed
from relay_victim import POINTS
from waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.stack, pytest.mark.slow]


def test_killed_at_every_step(new_relayed: NewRelayed) -> None:
    relayed = new_relayed(shards=2)
    for point in POINTS:
        for times in (1, 3):
            relayed.write(1200)
            process = relayed.victim(point, 1 if point == "in take-over" else times)
            output, _ = process.communicate(timeout=PATIENCE_SECONDS)
            assert process.returncode == -signal.SIGKILL, f"{point}: {output}"
    assert relayed.left() > 0
    counters = relayed.until_empty()
    print(counters)
    assert relayed.ledger().clean
