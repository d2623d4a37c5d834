"""A finding: what is wrong, why it matters and what to do, in one line each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from outbox_connectors.errors import ExitCode


class Severity(StrEnum):
    """How bad it is. Critical: events can be lost, or nothing moves."""

    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a command whose worst finding this is."""
        return {
            Severity.OK: ExitCode.OK,
            Severity.WARNING: ExitCode.WARNING,
            Severity.CRITICAL: ExitCode.CRITICAL,
        }[self]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found. `source` is where the knowledge comes from."""

    code: str
    severity: Severity
    cause: str
    remedy: str
    source: str
