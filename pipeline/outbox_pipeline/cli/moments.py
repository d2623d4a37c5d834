"""Parse times given on the command line."""

from __future__ import annotations

from datetime import UTC, datetime

from outbox_connectors.errors import UsageError


def moment(text: str) -> datetime:
    """Parse an ISO 8601 time; without an offset it is UTC. Raises UsageError."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--since {text!r} is no time", remedy="write it as 2026-11-29T12:00:00Z") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
