"""Retries: the delays, and which errors are transient."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg.errors import PipelineAborted

from outbox_connectors import backoff
from outbox_consumers.errors import NotDelivered, ReadOnlyDatabase, UsageError

# Errors that do not depend on the event. By SQLSTATE, since psycopg files 25P03 and 25P04 under
# InternalError and the rest under OperationalError (PostgreSQL docs, appendix A; psycopg 3.3).
TRANSIENT_SQLSTATES = frozenset(
    {
        "25006",  # read_only_sql_transaction: the primary became a standby meanwhile
        "25P03",  # idle_in_transaction_session_timeout
        "25P04",  # transaction_timeout
        "40001",  # serialization_failure
        "40003",  # statement_completion_unknown
        "40P01",  # deadlock_detected
        "55P03",  # lock_not_available
        "57014",  # query_canceled
        "57P01",  # admin_shutdown
        "57P02",  # crash_shutdown
        "57P03",  # cannot_connect_now
        "57P05",  # idle_session_timeout
    }
)
TRANSIENT_CLASSES = frozenset({"08", "53", "58"})  # connection, insufficient resources, system error


@dataclass(frozen=True, slots=True)
class RetryStrategy:
    """How long a failed event waits, in seconds, and how often it is tried.

    Before attempt n + 1 the event waits `wait + linear_wait * n + exponential_wait ** n` seconds, at
    most `max_wait`, spread by `jitter` (0.25: between 75 % and 125 %). An `exponential_wait` of 0 adds
    nothing. `max_attempts` None: unlimited.
    """

    max_attempts: int | None = None
    wait: float = 0.0
    linear_wait: float = 0.0
    exponential_wait: float = 2.0
    max_wait: float = 60.0
    jitter: float = 0.25

    def __post_init__(self) -> None:
        numbers = (self.wait, self.linear_wait, self.exponential_wait, self.max_wait)
        if min(numbers) < 0 or not 0 <= self.jitter < 1:
            raise UsageError("RetryStrategy takes waits of 0 or more, and a jitter of at least 0 and below 1")
        if self.max_attempts is not None and self.max_attempts < 1:
            raise UsageError(f"RetryStrategy(max_attempts={self.max_attempts}): must be at least 1")

    def delay(self, attempts: int, chance: float) -> float:
        """Return the seconds to wait after `attempts` failures. `chance` is a random number in [0, 1)."""
        seconds = self.wait + self.linear_wait * attempts
        if self.exponential_wait:
            base = self.exponential_wait
            seconds += backoff.delay(attempts, base, self.max_wait, factor=base)
        return backoff.spread(min(seconds, self.max_wait), self.jitter, chance)

    def exhausted(self, attempts: int) -> bool:
        """Return whether no attempt is left."""
        return self.max_attempts is not None and attempts >= self.max_attempts


# For transient errors: the first retry comes soon, later ones after longer delays.
TRANSIENT = RetryStrategy(linear_wait=0.2, exponential_wait=0, max_wait=5.0, jitter=0.5)


def is_transient(error: BaseException) -> bool:
    """Return whether the error is transient: deadlock, timeout, lost connection, server restart."""
    if not isinstance(error, psycopg.Error):
        return isinstance(error, ReadOnlyDatabase | NotDelivered)
    state = error.sqlstate
    if state is None:
        # Raised by the client: the connection is lost. PipelineAborted only follows another error.
        return isinstance(error, psycopg.OperationalError) and not isinstance(error, PipelineAborted)
    return state in TRANSIENT_SQLSTATES or state[:2] in TRANSIENT_CLASSES or _is_stale_plan(error)


def _is_stale_plan(error: psycopg.Error) -> bool:
    """Return whether a table was altered after a statement on it was prepared; psycopg prepares it again.

    "cached plan must not change result type": recognised by the function in the server that raised it, since
    the text is translated.
    """
    return error.sqlstate == "0A000" and error.diag.source_function == "RevalidateCachedQuery"
