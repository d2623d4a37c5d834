"""Signals that ask a loop to end."""

from __future__ import annotations

import signal
import threading

import pytest

from outbox_connectors.signals import Stopping
from waiting import until


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_inside_a_wait_does_not_wait_for_itself(number: signal.Signals) -> None:
    """Event.wait and Event.set take one lock; the handler runs on the thread that holds it."""
    held, told = threading.Lock(), threading.Event()

    def stop() -> None:
        with held:
            told.set()

    with Stopping(stop):
        with held:
            signal.raise_signal(number)
            assert not told.is_set()
        until(told.is_set, "the word to stop")


def test_what_signals_did_before_they_do_again() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Stopping(lambda: None):
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
