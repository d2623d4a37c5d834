"""Let a process that crashes in native code say where it was."""

from __future__ import annotations

import faulthandler
import sys
from contextlib import suppress


def trace_crashes() -> None:
    """Print the Python stack of every thread to stderr when this process crashes.

    That is: when it gets SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGABRT; it still ends with that signal. A
    faulthandler that is on already keeps its file; without a stderr nothing is done. A crash in a thread that
    librdkafka made prints nothing, since those threads block all signals and the kernel then ends the process
    at once: only its exit code and a core dump tell.
    """
    if not faulthandler.is_enabled():
        with suppress(RuntimeError, OSError, ValueError):  # no stderr, or one without a file descriptor
            faulthandler.enable(sys.stderr)
