"""Workers killed at each step of their work: a read_committed reader sees every event once, in order."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from fix_relay import NewRelayed, Relayed
from forms import SEED
from outbox_connectors.errors import ExitCode
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


def test_ctrl_c_while_workers_start_is_no_failure(relayed: Relayed) -> None:
    """It reaches the whole process group: the parent, and workers that are still importing."""
    dice = random.Random(SEED)
    for _ in range(6):
        process = relayed.announced("--workers", "2")
        time.sleep(dice.uniform(0.0, 1.0))
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode in (0, ExitCode.FAILED), output  # the latter: the relay had not begun
        assert "Traceback" not in output
        assert "cannot start" not in output
