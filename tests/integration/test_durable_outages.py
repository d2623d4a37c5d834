"""PostgreSQL is killed while workers run and one of them is frozen beyond its lease: nothing is lost."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest

from durable_lab import SHORT_LEASE, Lab
from fix_stack import Database
from forms import sized
from waiting import until

pytestmark = [pytest.mark.stack, pytest.mark.slow]

OUTAGES = sized(2, 20)


def test_the_server_is_killed_while_one_worker_is_frozen(lab: Lab, database: Database) -> None:
    """Each time another worker: when it resumes, its session and its lease no longer exist."""
    fleet = lab.worker(fleet=2, seconds=0.005, lease=SHORT_LEASE, max_attempts=1000)
    try:
        for number in range(OUTAGES):
            lab.add_jobs(150, keys=40)
            until(partial(applied, lab, len(lab.job_ids) - 120))
            frozen = fleet.children()[number % 2]
            os.kill(frozen, signal.SIGSTOP)
            try:
                database.server.kill("postgres")
                database.server.start("postgres")
                lab.add_jobs(50)
                until(lambda: lab.left() == 0)
                lab.assert_applied_once_in_order()
            finally:
                os.kill(frozen, signal.SIGCONT)
        assert fleet.stop() == 0, fleet.log_text()
    finally:
        fleet.kill()
    lab.assert_applied_once_in_order()
    assert lab.states() == {}
    print(f"{OUTAGES} outages, {len(lab.job_ids)} jobs, each applied once and in order")


def applied(lab: Lab, count: int) -> bool:
    return len(lab.effects()) >= count
