"""The books: what was written, delivered and applied, id by id. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from outbox_connectors.errors import ExitCode

MAX_LISTED: Final = 10_000
MAX_REMEMBERED: Final = 1_000_000  # ids that may still arrive are known up to this number


@dataclass(slots=True)
class AuditReport:
    """Counts, and the ids that need a person. Lists end, counts do not: see `document`."""

    written: int = 0
    delivered: int = 0  # different ids
    applied: int | None = None
    missing: int = 0  # written and not delivered
    unapplied: int = 0  # delivered and not applied, where an inbox was read
    duplicated: int = 0  # records beyond the first of their id
    unexpected: int = 0  # delivered and not written, where published rows are kept
    missing_ids: list[bytes] = field(default_factory=list)
    unapplied_ids: list[bytes] = field(default_factory=list)

    @property
    def exit_code(self) -> ExitCode:
        """CRITICAL when an event is missing anywhere."""
        return ExitCode.CRITICAL if self.missing or self.unapplied else ExitCode.OK

    def document(self) -> dict[str, Any]:
        """Show them as the JSON of `outboxctl audit --json`, with at most MAX_LISTED ids a list."""
        return {
            "written": self.written,
            "delivered": self.delivered,
            "applied": self.applied,
            "missing": [str(UUID(bytes=one)) for one in self.missing_ids[:MAX_LISTED]],
            "missing_count": self.missing,
            "unapplied": [str(UUID(bytes=one)) for one in self.unapplied_ids[:MAX_LISTED]],
            "unapplied_count": self.unapplied,
            "duplicated": self.duplicated,
            "unexpected": self.unexpected,
        }

    def enter(
        self,
        written: Iterable[bytes],
        delivered: list[bytes],
        applied: Iterable[bytes] | None,
        *,
        kept: bool,
    ) -> None:
        """Enter one part of the ids, cut the same way from every source.

        `kept`: published rows stay, so a record without a row is unexpected.
        """
        rows, records = set(written), set(delivered)
        self.written += len(rows)
        self.delivered += len(records)
        self.duplicated += len(delivered) - len(records)
        lost = rows - records
        self.missing += len(lost)
        self.missing_ids += sorted(lost)[: MAX_REMEMBERED - len(self.missing_ids)]
        if kept:
            self.unexpected += len(records - rows)
        if applied is not None:
            done = set(applied)
            self.applied = (self.applied or 0) + len(done)
            late = records - done
            self.unapplied += len(late)
            self.unapplied_ids += sorted(late)[: MAX_REMEMBERED - len(self.unapplied_ids)]

    def arrived(self, late: Iterable[bytes]) -> None:
        """Strike ids off the missing ones: they were on their way."""
        found = set(late).intersection(self.missing_ids)
        self.missing -= len(found)
        self.delivered += len(found)
        if found:
            self.missing_ids = [one for one in self.missing_ids if one not in found]
