"""Errors of the road; the tree they hang in is drawn in `outbox_connectors.errors`."""

from __future__ import annotations

from outbox_connectors.errors import (
    DefinitionError,
    EventError,
    ExitCode,
    Failed,
    OutboxError,
    Refused,
    Unreachable,
    UsageError,
)

__all__ = [
    "DefinitionError",
    "EventError",
    "ExitCode",
    "Failed",
    "OutboxError",
    "Refused",
    "Unreachable",
    "UsageError",
]
