"""Parse times given on a command line."""

from __future__ import annotations

from datetime import UTC, datetime

from outbox_connectors.errors import UsageError


def moment(text: str, option: str = "--since") -> datetime:
    """Parse the ISO 8601 time given as `option`; without an offset it is UTC. Raises UsageError."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} {text}: not an ISO 8601 time", remedy="write 2026-01-31T12:00Z") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
