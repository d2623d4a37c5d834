"""Workers of the durable inbox that are killed, frozen or stopped: none lost, none twice, order kept."""

from __future__ import annotations

import os
import re
import signal
from functools import partial
from pathlib import Path

import pytest

from durable_lab import SHORT_LEASE, Child, Lab
from waiting import until

pytestmark = pytest.mark.stack


@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
@pytest.mark.parametrize("step", ["take", "effect", "finish", "commit", "fail"])
@pytest.mark.slow
def test_killed_after_every_step(lab: Lab, step: str, together: bool) -> None:
    """Kill three workers after a step, then let another one finish."""
    lab.add_jobs(200)
    for times in (1, 3, 2):
        killed = lab.worker(step=step, times=times, failing=True, together=together)
        assert killed.exit_code() == -signal.SIGKILL, killed.log_text()
        lab.expire_leases()
    lab.finish_all()
    lab.assert_applied_once_in_order()
    assert lab.states() == {}


@pytest.mark.slow
def test_killed_while_ending_jobs_that_wrote_nothing(lab: Lab) -> None:
    """Their handlers may run again, but every job ends."""
    lab.add_jobs(200)
    for step in ("finish", "flush"):
        killed = lab.worker(step=step, times=2, silent=True)
        assert killed.exit_code() == -signal.SIGKILL, killed.log_text()
        lab.expire_leases()
    lab.finish_all()
    assert lab.left() == 0


@pytest.mark.parametrize("step", ["take", "effect", "finish"])
@pytest.mark.slow
def test_a_frozen_worker_commits_nothing_when_it_resumes(lab: Lab, step: str) -> None:
    lab.add_jobs(100)
    zombie = lab.worker(step=step, times=2, signal="SIGSTOP", lease=SHORT_LEASE)
    try:
        until(zombie.is_stopped)
        lab.wait_for_lease_expiry()
        lab.finish_all()
        lab.assert_applied_once_in_order()
        zombie.send(signal.SIGCONT)
        lab.add_jobs(100)
        lab.finish_all()
        lab.assert_applied_once_in_order()
        assert zombie.stop() == 0, zombie.log_text()
    finally:
        zombie.kill()
    # It notices by its own lease, or since another worker has terminated its session.
    assert re.search("dead|lease|terminating connection", zombie.log_text())
    lab.assert_applied_once_in_order()
    assert lab.query("SELECT count(*) FROM inbox_worker") == [(0,)]


@pytest.mark.slow
def test_an_expired_lease_fences_the_effect(lab: Lab) -> None:
    """The lease expires during the handler call; another worker does the job, this effect is rolled back."""
    lab.add_jobs(20)
    without_renewal = lab.worker(without_renewal=True, seconds=2 * SHORT_LEASE, lease=SHORT_LEASE)
    until(lambda: lab.states().get("leased"))
    lab.finish_all()
    lab.assert_applied_once_in_order()
    assert without_renewal.stop() == 0, without_renewal.log_text()
    lab.assert_applied_once_in_order()


def test_sigterm_finishes_the_current_job_and_gives_back_the_others(lab: Lab) -> None:
    lab.add_jobs(50, keys=50)
    worker = lab.worker(seconds=0.3)
    until(lambda: len(lab.effects()) >= 2)
    assert worker.stop() == 0, worker.log_text()
    assert "leased" not in lab.states()
    assert lab.query("SELECT count(*) FROM inbox_worker") == [(0,)]
    lab.finish_all()
    lab.assert_applied_once_in_order()


@pytest.mark.slow
def test_a_fleet_replaces_a_killed_worker_at_once(lab: Lab) -> None:
    """With a lease of a minute, only the parent process can know that its child has died."""
    lab.add_jobs(300, keys=50)
    fleet = lab.worker(fleet=3, seconds=0.02)
    try:
        until(lambda: len(lab.effects()) > 20)
        for _ in range(3):
            victim = fleet.children()[0]
            os.kill(victim, signal.SIGKILL)
            until(partial(replaced, fleet, victim))
        until(lambda: lab.left() == 0)
        assert fleet.stop() == 0, fleet.log_text()
    finally:
        fleet.kill()
    lab.assert_applied_once_in_order()
    assert lab.query("SELECT count(*) FROM inbox_worker WHERE alive_until > now()") == [(0,)]


@pytest.mark.slow
def test_workers_stop_when_their_parent_is_killed(lab: Lab) -> None:
    lab.add_jobs(300, keys=50)
    fleet = lab.worker(fleet=2, seconds=0.05)
    until(lambda: len(lab.effects()) > 5)
    orphans = fleet.children()
    assert len(orphans) == 2
    fleet.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in orphans))
    assert "leased" not in lab.states()
    lab.finish_all()
    lab.assert_applied_once_in_order()


def replaced(fleet: Child, victim: int) -> bool:
    children = fleet.children()
    return len(children) == 3 and victim not in children
