"""Work that the watch does on a schedule beside watching. It may fail; the watch goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outbox_pipeline.errors import OutboxError

FIRST_SECONDS = 60.0  # a watch that only looks in has nothing to do


@dataclass(slots=True)
class ScheduledRuns:
    """What was done so far. One thread writes it; a reader may see one number before another."""

    done: int = 0
    failed: int = 0
    failed_in_a_row: int = 0  # since it was last done
    last_done_at: float | None = None  # epoch seconds


def repeat(
    job: Callable[[], object],
    name: str,
    *,
    every_seconds: float,
    stopped: Callable[[], bool],
    wait: Callable[[float], None],
    clock: Callable[[], float],
    report: Callable[[str], None],
    runs: ScheduledRuns,
) -> None:
    """Do a job each `every_seconds` until `stopped()`, the first time soon.

    A failure, whatever it is, is reported in one line and counted, and the job tried again at its
    next time. What it gives back is reported if it says anything. `wait` should return early when a
    stop is asked for.
    """
    wait(min(every_seconds, FIRST_SECONDS))
    while not stopped():
        try:
            said = str(job())
        except Exception as error:  # the watch must outlive whatever goes wrong beside it
            runs.failed += 1
            runs.failed_in_a_row += 1
            kind = "" if isinstance(error, OutboxError) else f"{type(error).__name__}: "
            report(f"{name} failed: {kind}{' '.join(str(error).split())}")
        else:
            runs.done += 1
            runs.failed_in_a_row = 0
            runs.last_done_at = clock()
            if said:
                report(f"{name}: {said}")
        wait(every_seconds)
