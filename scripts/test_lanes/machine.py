"""The machine that tests run on: whether it is quiet."""

from __future__ import annotations

import os
from collections.abc import Callable

QUIET_LOAD_PER_CORE = 0.5
LOOK_SECONDS = 5.0


def load_per_core() -> float:
    """Read the load of the last minute, divided by the number of cores."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def wait_until_quiet(
    seconds: float,
    *,
    load: Callable[[], float] = load_per_core,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> bool:
    """Wait until the load is low, at most this long, and say whether it is."""
    deadline = clock() + seconds
    while load() > QUIET_LOAD_PER_CORE:
        if clock() >= deadline:
            return False
        sleep(LOOK_SECONDS)
    return True
