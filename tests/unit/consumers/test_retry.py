"""Retries: the delays, and which errors are transient."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from outbox_consumers import RetryStrategy
from outbox_consumers.errors import ReadOnlyDatabase, UsageError
from outbox_consumers.handlers.retry import is_transient


def test_the_wait_grows_to_its_limit() -> None:
    retry = RetryStrategy(exponential_wait=2, max_wait=60, jitter=0)
    assert [retry.delay(n, 0.5) for n in (1, 2, 3, 5, 6, 7, 5000)] == [2, 4, 8, 32, 60, 60, 60]
    linear = RetryStrategy(wait=1, linear_wait=0.5, exponential_wait=0, jitter=0)
    assert [linear.delay(n, 0.9) for n in (1, 2, 3)] == [1.5, 2, 2.5]


def test_jitter_spreads_the_wait_on_both_sides() -> None:
    retry = RetryStrategy(wait=10, exponential_wait=0, jitter=0.25)
    assert retry.delay(1, 0.0) == 7.5
    assert retry.delay(1, 0.5) == 10
    assert retry.delay(1, 0.9999) == pytest.approx(12.5, abs=0.01)


def test_attempts_run_out() -> None:
    assert not RetryStrategy().exhausted(10**6)
    assert [RetryStrategy(max_attempts=3).exhausted(n) for n in (1, 2, 3, 4)] == [False, False, True, True]


@pytest.mark.parametrize(
    "settings", [{"wait": -1}, {"jitter": 1}, {"jitter": -0.1}, {"max_attempts": 0}, {"max_wait": -1}]
)
def test_invalid_strategies_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        RetryStrategy(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error",
    [
        errors.DeadlockDetected(),
        errors.SerializationFailure(),
        errors.LockNotAvailable(),
        errors.QueryCanceled(),
        errors.AdminShutdown(),
        errors.IdleSessionTimeout(),
        errors.IdleInTransactionSessionTimeout(),  # InternalError, not OperationalError
        errors.TransactionTimeout(),  # the same
        errors.TooManyConnections(),
        errors.DiskFull(),
        errors.ReadOnlySqlTransaction(),
        psycopg.OperationalError("server closed the connection unexpectedly"),
        ReadOnlyDatabase("the database is a standby"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_transient_errors(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        errors.UniqueViolation(),
        errors.UndefinedTable(),
        errors.InFailedSqlTransaction(),
        errors.PipelineAborted("aborted"),
        psycopg.ProgrammingError("the query has 1 placeholder"),
        psycopg.InterfaceError("the cursor is closed"),
        ValueError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_permanent_errors(error: Exception) -> None:
    assert not is_transient(error)
