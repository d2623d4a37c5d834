"""Run a job of the watch on a schedule, for example maintenance. It may fail; the watch goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outbox_pipeline.errors import OutboxError

FIRST_SECONDS = 60.0  # a watch that ends within this time runs no job


@dataclass(slots=True)
class ScheduledRuns:
    """Counts of a job's runs. One thread writes them; a reader may see one updated before another."""

    done: int = 0
    failed: int = 0
    failed_in_a_row: int = 0  # since the last success
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
    """Run a job each `every_seconds` until `stopped()`, the first time within FIRST_SECONDS.

    A failure, whatever it is, is reported in one line and counted, and the job runs again at its
    next time. Its result is reported unless it is empty. `wait` should return early when a
    stop is asked for.
    """
    wait(min(every_seconds, FIRST_SECONDS))
    while not stopped():
        try:
            said = str(job())
        except Exception as error:  # the watch must survive any failure of the job
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
