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
import time
from types import FrameType

PROBLEM = "interrupted; what was done before stays done"
REMEDY = "run the command again to go on"
_AGAIN_SECONDS = 0.001


class Interruption:
    """The Ctrl-C of one process. Lives from `watch` to `over`, in the main thread."""

    def __init__(self) -> None:
        self.came = False
        self._main = 0

    def watch(self) -> None:
        """Raise KeyboardInterrupt on SIGINT from now on, and remember that it came.

        Does nothing where SIGINT is ignored: that is how a shell starts a job in the background.
        """
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            self._main = _thread.get_ident()
            signal.signal(signal.SIGINT, self._arrived)
            sys.unraisablehook = self._unraisable

    def over(self) -> None:
        """Ignore SIGINT from now on: the outcome is decided, and Python's own end cannot be broken off."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        if frame is not None and frame.f_code is Interruption._unraisable.__code__:
            _thread.start_new_thread(self._again, ())  # what is raised there is printed and forgotten
        else:
            raise KeyboardInterrupt

    def _unraisable(self, found: sys.UnraisableHookArgs) -> None:
        """Send a Ctrl-C again that came where nothing can be raised, such as inside a destructor."""
        if issubclass(found.exc_type, KeyboardInterrupt):
            _thread.start_new_thread(self._again, ())
        else:
            sys.__unraisablehook__(found)

    def _again(self) -> None:
        time.sleep(_AGAIN_SECONDS)
        signal.pthread_kill(self._main, signal.SIGINT)
