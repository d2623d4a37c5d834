"""Errors of the pipeline; the tree they hang in is drawn in `outbox_connectors.errors`."""

from __future__ import annotations

from outbox_connectors.errors import (
    AccessDenied,
    DefinitionError,
    EventError,
    ExitCode,
    Failed,
    LoginFailed,
    OutboxError,
    Refused,
    Unreachable,
    UsageError,
)

__all__ = [
    "AccessDenied",
    "DefinitionError",
    "EventError",
    "ExitCode",
    "Failed",
    "LoginFailed",
    "OutboxError",
    "Refused",
    "Unreachable",
    "UsageError",
]
