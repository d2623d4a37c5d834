"""When the demo kills which process."""

from __future__ import annotations

from demo_run.scenario import KILLS, RunProgress, Victim


def test_billing_is_killed_twice_and_connect_once() -> None:
    victims = [victim for _, victim in KILLS]
    assert victims.count(Victim.BILLING) == 2
    assert victims.count(Victim.CONNECT) == 1
    assert [share for share, _ in KILLS] == sorted(share for share, _ in KILLS)


def test_a_kill_is_due_when_its_share_has_been_applied() -> None:
    progress = RunProgress(orders=1000, written=1000, applied=149)
    assert progress.due() is None
    progress.applied = 150
    assert progress.due() is Victim.BILLING
    progress.kills_done = 1
    assert progress.due() is None


def test_a_run_is_not_finished_before_every_kill() -> None:
    """A quick machine may have applied all before the last kill; the kill comes all the same."""
    before = RunProgress(orders=1000, written=1000, applied=1000, kills_done=2)
    assert (before.finished, before.due()) == (False, Victim.BILLING)
    after = RunProgress(orders=1000, written=1000, applied=1000, kills_done=3)
    assert (after.finished, after.due()) == (True, None)


def test_a_run_is_not_finished_while_an_invoice_is_missing() -> None:
    assert not RunProgress(orders=1000, written=1000, applied=999, kills_done=3).finished
