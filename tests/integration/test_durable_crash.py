"""Workers of the durable inbox that die, freeze or are stopped: nothing lost, nothing twice, order kept."""

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
    """Kill a worker three times after a step, then let another one do the rest."""
    lab.jobs(200)
    for times in (1, 3, 2):
        dying = lab.worker(step=step, times=times, failing=True, together=together)
        assert dying.ends() == -signal.SIGKILL, dying.said()
        lab.expire_leases()
    lab.drain()
    lab.applied_once_in_order()
    assert lab.states() == {}


@pytest.mark.slow
def test_killed_while_ending_jobs_that_wrote_nothing(lab: Lab) -> None:
    """Their handlers may run again, which is all that can be said of effects elsewhere; no job stays."""
    lab.jobs(200)
    for step in ("finish", "flush"):
        dying = lab.worker(step=step, times=2, silent=True)
        assert dying.ends() == -signal.SIGKILL, dying.said()
        lab.expire_leases()
    lab.drain()
    assert lab.left() == 0


@pytest.mark.parametrize("step", ["take", "effect", "finish"])
@pytest.mark.slow
def test_a_frozen_worker_commits_nothing_when_it_wakes_up(lab: Lab, step: str) -> None:
    lab.jobs(100)
    zombie = lab.worker(step=step, times=2, signal="SIGSTOP", lease=SHORT_LEASE)
    try:
        until(zombie.frozen)
        lab.outlive()
        lab.drain()
        lab.applied_once_in_order()
        zombie.send(signal.SIGCONT)
        lab.jobs(100)
        lab.drain()
        lab.applied_once_in_order()
        assert zombie.stops() == 0, zombie.said()
    finally:
        zombie.kill()
    # It is told by its own lease, or by whoever ended its session.
    assert re.search("dead|lease|terminating connection", zombie.said())
    lab.applied_once_in_order()
    assert lab.query("SELECT count(*) FROM inbox_worker") == [(0,)]


@pytest.mark.slow
def test_a_lease_that_nobody_extends_fences_the_effect(lab: Lab) -> None:
    """The handler works on while its lease runs out; others do the job, and its own effect is undone."""
    lab.jobs(20)
    mute = lab.worker(mute=True, seconds=2 * SHORT_LEASE, lease=SHORT_LEASE)
    until(lambda: lab.states().get("leased"))
    lab.drain()
    lab.applied_once_in_order()
    assert mute.stops() == 0, mute.said()
    lab.applied_once_in_order()


def test_sigterm_finishes_one_job_and_hands_back_the_others(lab: Lab) -> None:
    lab.jobs(50, keys=50)
    worker = lab.worker(seconds=0.3)
    until(lambda: len(lab.effects()) >= 2)
    assert worker.stops() == 0, worker.said()
    assert "leased" not in lab.states()
    assert lab.query("SELECT count(*) FROM inbox_worker") == [(0,)]
    lab.drain()
    lab.applied_once_in_order()


@pytest.mark.slow
def test_a_fleet_replaces_a_killed_worker_at_once(lab: Lab) -> None:
    """With a lease of a minute only the parent can know that its child is dead."""
    lab.jobs(300, keys=50)
    fleet = lab.worker(fleet=3, seconds=0.02)
    try:
        until(lambda: len(lab.effects()) > 20)
        for _ in range(3):
            victim = fleet.children()[0]
            os.kill(victim, signal.SIGKILL)
            until(partial(replaced, fleet, victim))
        until(lambda: lab.left() == 0)
        assert fleet.stops() == 0, fleet.said()
    finally:
        fleet.kill()
    lab.applied_once_in_order()
    assert lab.query("SELECT count(*) FROM inbox_worker WHERE alive_until > now()") == [(0,)]


@pytest.mark.slow
def test_workers_stop_when_their_parent_is_killed(lab: Lab) -> None:
    lab.jobs(300, keys=50)
    fleet = lab.worker(fleet=2, seconds=0.05)
    until(lambda: len(lab.effects()) > 5)
    orphans = fleet.children()
    assert len(orphans) == 2
    fleet.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in orphans))
    assert "leased" not in lab.states()
    lab.drain()
    lab.applied_once_in_order()


def replaced(fleet: Child, victim: int) -> bool:
    children = fleet.children()
    return len(children) == 3 and victim not in children
