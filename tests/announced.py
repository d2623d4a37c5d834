"""`outboxctl` in a process that tells when it begins to heed Ctrl-C."""

from __future__ import annotations

from typing import IO

# A Ctrl-C that comes while Python itself starts is Python's. So the child tells when ours begins: with the
# first handler of SIGINT that is set.
ANNOUNCED = """
import os, signal
from outbox_pipeline import __main__ as program

def announcing(number, handler, set_handler=signal.signal):
    before = set_handler(number, handler)
    if number == signal.SIGINT:
        signal.signal = set_handler
        os.write(2, b"watching\\n")
    return before

signal.signal = announcing
program.main()
"""


def await_watching(out: IO[str]) -> None:
    """Wait until the process heeds Ctrl-C. `out` is where its stderr goes."""
    assert out.readline() == "watching\n"
