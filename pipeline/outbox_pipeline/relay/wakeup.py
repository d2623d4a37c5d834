"""What wakes a worker: a notification, a thread that has finished, or the end of a delay."""

from __future__ import annotations

import os
import selectors
from dataclasses import dataclass
from typing import Any, Final

from outbox_connectors import backoff

SHORTEST_SECONDS: Final = 0.005
LONGEST_SECONDS: Final = 2.0
GROWTH: Final = 1.5


@dataclass(slots=True)
class PollingDelay:
    """How long to wait before looking for rows again: short after a find, longer with each miss."""

    longest: float = LONGEST_SECONDS
    seconds: float = SHORTEST_SECONDS
    _misses: int = 0

    def found(self) -> None:
        """Begin again with short waits."""
        self.seconds, self._misses = SHORTEST_SECONDS, 0

    def missed(self) -> None:
        """Wait longer next time."""
        self._misses += 1
        self.seconds = backoff.delay(self._misses + 1, SHORTEST_SECONDS, self.longest, factor=GROWTH)


class Waiter:
    """Sleep until a socket of the database has something, a thread calls `wake`, or time is over."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._read, selectors.EVENT_READ)
        self._watched: int | None = None

    @property
    def readable(self) -> int:
        """The descriptor that `wake` makes readable."""
        return self._read

    def watch(self, descriptor: int | None) -> None:
        """Watch this socket from now on, in the place of the one before."""
        if self._watched is not None:
            self._selector.unregister(self._watched)
        self._watched = descriptor
        if descriptor is not None:
            self._selector.register(descriptor, selectors.EVENT_READ)

    def wake(self, *_: Any) -> None:
        """End the wait. May be called from any thread and from a signal handler."""
        try:
            os.write(self._write, b"x")
        except BlockingIOError:
            return  # it is full of wake-ups already

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds`; tell whether the watched socket has something."""
        heard = False
        for key, _ in self._selector.select(max(0.0, seconds)):
            if key.fd == self._read:
                os.read(self._read, 4096)
            else:
                heard = True
        return heard

    def close(self) -> None:
        """Close the pipe and forget the socket."""
        self._selector.close()
        os.close(self._read)
        os.close(self._write)
