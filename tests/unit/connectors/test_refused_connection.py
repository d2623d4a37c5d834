"""Why PostgreSQL could not be reached, in one line that says what to do."""

from __future__ import annotations

import pytest

from outbox_connectors.errors import AccessDenied, ExitCode, LoginFailed, Unreachable
from outbox_connectors.refused_connection import unreachable


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("connection refused", "check host and port (the dsn, PGHOST, PGPORT) and that the server runs"),
        ('role "x" does not exist', "create the role, or give another user in the dsn or PGUSER"),
        ('database "x" does not exist', "create the database, or correct the dsn's dbname"),
        ("never heard of", "ask"),
    ],
)
def test_the_remedy_names_the_callers_own_setting(message: str, remedy: str) -> None:
    error = unreachable(message, "PostgreSQL", dsn="the dsn", database="the dsn's dbname", otherwise="ask")
    assert error.remedy == remedy


def test_each_line_of_many_addresses_is_told_once() -> None:
    message = "host  a: connection refused\nhost  a: connection refused\n\thost b: timeout expired\n"
    error = unreachable(message, "PostgreSQL", dsn="", database="")
    assert error.problem == "host a: connection refused; host b: timeout expired"


@pytest.mark.parametrize("host", ["None", "'db.invalid'"])
def test_a_host_that_nobody_knows_is_named_by_its_place(host: str) -> None:
    said = f"failed to resolve host {host}: [Errno -2] Name or service not known"
    error = unreachable(said, "PostgreSQL at db.invalid:5432", dsn="postgres.admin", database="here")
    assert str(error) == (
        "PostgreSQL at db.invalid:5432: the host's name cannot be resolved: Name or service not known; "
        "check the host (postgres.admin, PGHOST)"
    )


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ('FATAL:  password authentication failed for user "x"', LoginFailed),
        ("fe_sendauth: no password supplied", LoginFailed),
        ('FATAL:  permission denied for database "x"', AccessDenied),
        ("connection refused", Unreachable),
    ],
)
def test_a_server_that_rejects_us_is_told_from_one_that_does_not_answer(
    message: str, kind: type[Unreachable]
) -> None:
    error = unreachable(message, "PostgreSQL", dsn="", database="")
    assert type(error) is kind
    assert error.exit_code is ExitCode.UNREACHABLE
