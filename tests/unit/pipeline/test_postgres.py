"""What a command says when PostgreSQL ends its session or refuses a statement."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from outbox_connectors.errors import ExitCode
from outbox_pipeline.servers import postgres


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (psycopg.OperationalError("the connection is lost"), ExitCode.UNREACHABLE),
        (psycopg.InterfaceError("the connection is closed"), ExitCode.UNREACHABLE),
        (errors.AdminShutdown("terminating connection"), ExitCode.UNREACHABLE),
        (errors.CrashShutdown("terminating connection"), ExitCode.UNREACHABLE),
        (errors.CannotConnectNow("starting up"), ExitCode.UNREACHABLE),
        (errors.IdleSessionTimeout("idle-session timeout"), ExitCode.UNREACHABLE),
        (errors.IdleInTransactionSessionTimeout("idle-in-transaction timeout"), ExitCode.UNREACHABLE),
        (errors.ConnectionFailure("gone"), ExitCode.UNREACHABLE),
        (errors.QueryCanceled("statement timeout"), ExitCode.FAILED),
        (errors.InsufficientPrivilege("permission denied"), ExitCode.FAILED),
        (errors.UndefinedTable("no table"), ExitCode.FAILED),
        (errors.SerializationFailure("could not serialize"), ExitCode.FAILED),
    ],
)
def test_an_ended_session_is_worth_another_try(error: psycopg.Error, code: ExitCode) -> None:
    """Scripts that repeat a command on exit code 6 do so when a server is restarted."""
    said = postgres.failure(error)
    assert said.exit_code == code
    assert ("run it again" in said.remedy) == (code is ExitCode.UNREACHABLE)
    assert postgres.is_lost(error) == (code is ExitCode.UNREACHABLE)


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (errors.InsufficientPrivilege("permission denied"), True),
        (errors.UndefinedTable("no table"), True),
        (errors.UndefinedColumn("no column"), True),
        (errors.ReadOnlySqlTransaction("a standby"), False),
        (errors.SerializationFailure("could not serialize"), False),
        (errors.FeatureNotSupported("cached plan must not change result type"), False),
        (errors.DiskFull("no space"), False),
        (psycopg.OperationalError("the connection is lost"), False),
    ],
)
def test_what_waiting_cannot_mend(error: psycopg.Error, refused: bool) -> None:
    assert postgres.is_refused(error) is refused
