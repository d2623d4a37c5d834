"""Waiting for what a test expects: for a condition, never for a time.

One patience for every test. It says when to give up, not how fast a thing must be, and costs nothing where a
test passes: so it is long enough for a machine that does ten other things.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")

PATIENCE_SECONDS = 240.0


def until(look: Callable[[], Seen], what: str = "it", *, pause_seconds: float = 0.05) -> Seen:
    """Look again and again until something true is seen, and return that; fail after `PATIENCE_SECONDS`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (seen := look()):
        assert time.monotonic() < deadline, f"waited too long: {what} did not happen; last seen: {seen!r}"
        time.sleep(pause_seconds)
    return seen
