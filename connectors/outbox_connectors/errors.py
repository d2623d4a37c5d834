"""The errors and exit codes of all three packages.

    OutboxError                      exit code
    ├── DefinitionError              2  the definition file is wrong (names file and line)
    ├── UsageError                   2  the call does not make sense
    ├── EventError (ValueError)      2  an event that could never be delivered
    ├── Unreachable                  6  PostgreSQL, Kafka or Connect does not answer, or rejects us
    │   ├── LoginFailed              6  the server does not accept the user or password
    │   └── AccessDenied             6  the server knows the user, who lacks a right
    ├── Refused                      7  a guard stopped what could lose or repeat events
    └── Failed                       1  it ran and did not succeed

Every error is one line: what is wrong, where, and what to do next. The other packages add subclasses.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """The exit codes of `outboxctl`, the only place that defines them."""

    OK = 0  # done; nothing differs; healthy
    FAILED = 1  # it ran and failed
    USAGE = 2  # bad command line or bad definition file
    DIFFERENT = 3  # `plan` found differences
    WARNING = 4  # verdict or finding of severity warning
    CRITICAL = 5  # verdict or finding of severity critical; audit found events missing
    UNREACHABLE = 6  # PostgreSQL, Kafka or Connect cannot be reached or refuses us
    REFUSED = 7  # a guard stopped something that could lose or repeat events


class OutboxError(Exception):
    """The root of every error this project raises on purpose."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED

    def __init__(self, problem: str, *, remedy: str = "", where: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self.where = where

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f"; {self.remedy}" if self.remedy else ""
        return f"{place}{self.problem}{advice}"


class DefinitionError(OutboxError):
    """The definition file cannot be used as it is."""

    exit_code = ExitCode.USAGE


class UsageError(OutboxError):
    """The call itself is wrong, independent of the state of the pipeline."""

    exit_code = ExitCode.USAGE


class EventError(OutboxError, ValueError):
    """An event that could never be delivered, rejected before the database is touched."""

    exit_code = ExitCode.USAGE


class Unreachable(OutboxError):
    """A server does not answer, or refuses access."""

    exit_code = ExitCode.UNREACHABLE


class LoginFailed(Unreachable):
    """A server answers, and does not accept the user or the password."""


class AccessDenied(Unreachable):
    """A server answers, and says that this user lacks a right."""


class Refused(OutboxError):
    """A safety check refused an operation that could lose or repeat events."""

    exit_code = ExitCode.REFUSED


class Failed(OutboxError):
    """It ran and did not succeed."""
