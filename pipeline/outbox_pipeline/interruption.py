"""Ctrl-C, remembered: whatever becomes of the exception, the process knows that it was told to stop.

A KeyboardInterrupt can come between any two bytecodes. Where it breaks a query off in the middle, the
clean-up that follows may fail with an error of its own ("another command is already in progress"), and
that error takes the place of the interruption on its way up. So the signal itself is kept, and the
command line looks at it before it puts an error into words.
"""

from __future__ import annotations

import _thread
import signal
import sys
from types import FrameType

PROBLEM = "interrupted; what was done before stays done"
REMEDY = "run the command again to go on"


class Interruption:
    """The Ctrl-C of one process. Lives from `watch` to `over`, in the main thread."""

    def __init__(self) -> None:
        self.came = False

    def watch(self) -> None:
        """Raise KeyboardInterrupt on SIGINT from now on, and remember that it came.

        Does nothing where SIGINT is ignored: that is how a shell starts a job in the background.
        """
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._arrived)
            sys.unraisablehook = _unraisable

    def over(self) -> None:
        """Ignore SIGINT from now on: the outcome is decided, and Python's own end cannot be broken off."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        raise KeyboardInterrupt


def _unraisable(found: sys.UnraisableHookArgs) -> None:
    """Raise a Ctrl-C again that came where nothing can be raised, such as inside a destructor."""
    if issubclass(found.exc_type, KeyboardInterrupt):
        _thread.interrupt_main()
    else:
        sys.__unraisablehook__(found)
