"""Print a stack trace when a process crashes in native code."""

from __future__ import annotations

import faulthandler
import sys
from contextlib import suppress


def trace_crashes() -> None:
    """Print the Python stack of every thread to stderr when this process crashes.

    That is: when it gets SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGABRT; it still ends with that signal. Does
    nothing if faulthandler is already enabled or there is no stderr. A crash in a thread that librdkafka made
    prints nothing: those threads block all signals, so the kernel ends the process at once, and only the exit
    code and a core dump are left.
    """
    if not faulthandler.is_enabled():
        with suppress(RuntimeError, OSError, ValueError):  # no stderr, or one without a file descriptor
            faulthandler.enable(sys.stderr)
