"""Stop a loop on SIGTERM and SIGINT."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Stopping:
    """A context in which SIGTERM and SIGINT call a function and have no other effect.

    A signal handler that raises inside the Kafka client makes it drop records (confluent-kafka-python
    #729), so Python's default SIGINT handler must be replaced. Has an effect in the main thread only:
    elsewhere the application handles signals itself.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                self._before[number] = signal.signal(number, self._received)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _received(self, number: int, _: FrameType | None) -> None:
        # A handler runs between two bytecodes of the main thread, which may be inside Event.wait and hold the
        # lock that Event.set needs: calling it here could deadlock. Another thread can wait for the lock.
        _thread.start_new_thread(self._stop, ())
