"""A finding of a check: code, severity, cause and remedy, each in one line."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from outbox_connectors.errors import ExitCode


class Severity(StrEnum):
    """How severe a finding is. Critical: events can be lost, or none are delivered."""

    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code of a command whose most severe finding has this severity."""
        return {
            Severity.OK: ExitCode.OK,
            Severity.WARNING: ExitCode.WARNING,
            Severity.CRITICAL: ExitCode.CRITICAL,
        }[self]


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check. `source` names the documentation or measurement that it rests on."""

    code: str
    severity: Severity
    cause: str
    remedy: str
    source: str
