"""When the demo kills what."""

from __future__ import annotations

from demo_run.story import PLOT, Event, Progress


def test_the_plot_kills_billing_twice_and_connect_once() -> None:
    events = [event for _, event in PLOT]
    assert events.count(Event.KILL_BILLING) == 2
    assert events.count(Event.KILL_CONNECT) == 1
    assert [share for share, _ in PLOT] == sorted(share for share, _ in PLOT)


def test_an_event_is_due_when_its_share_has_been_applied() -> None:
    progress = Progress(orders=1000, written=1000, applied=149)
    assert progress.due() is None
    progress.applied = 150
    assert progress.due() is Event.KILL_BILLING
    progress.happened = 1
    assert progress.due() is None


def test_the_story_is_not_over_before_everything_has_happened() -> None:
    """A quick machine may have applied all before the last kill; the kill comes all the same."""
    before = Progress(orders=1000, written=1000, applied=1000, happened=2)
    assert (before.over, before.due()) == (False, Event.KILL_BILLING)
    after = Progress(orders=1000, written=1000, applied=1000, happened=3)
    assert (after.over, after.due()) == (True, None)


def test_the_story_is_not_over_while_an_invoice_is_missing() -> None:
    assert not Progress(orders=1000, written=1000, applied=999, happened=3).over
