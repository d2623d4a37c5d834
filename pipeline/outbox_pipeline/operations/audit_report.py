"""What an audit counts: ids that were written, delivered and applied. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from outbox_connectors.errors import ExitCode
from outbox_pipeline.ids.comparison import ComparedIds

MAX_LISTED: Final = 10_000
MAX_REMEMBERED: Final = 1_000_000  # ids that may still arrive are known up to this number


@dataclass(slots=True)
class AuditReport:
    """Counts of ids, and the ids of events that did not arrive. The lists are limited, the counts are not."""

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
        """Return them as the JSON of `outboxctl audit --json`, with at most MAX_LISTED ids a list."""
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

    def add(self, part: ComparedIds, applied: Iterable[bytes] | None, *, kept: bool) -> None:
        """Count one bucket of the ids; `applied` is the same bucket of the inbox.

        `kept`: published rows stay in a table, so a record without a row is unexpected.
        """
        records = set(part.records)
        self.written += len(part.rows)
        self.delivered += len(records)
        self.duplicated += len(part.records) - len(records)
        missing = part.rows - records
        self.missing += len(missing)
        self.missing_ids += sorted(missing)[: MAX_REMEMBERED - len(self.missing_ids)]
        if kept:
            self.unexpected += len(records - part.rows)
        if applied is not None:
            done = set(applied)
            self.applied = (self.applied or 0) + len(done)
            unapplied = records - done
            self.unapplied += len(unapplied)
            self.unapplied_ids += sorted(unapplied)[: MAX_REMEMBERED - len(self.unapplied_ids)]

    def arrived(self, late: Iterable[bytes]) -> None:
        """Count missing ids as delivered that have arrived since."""
        found = set(late).intersection(self.missing_ids)
        self.missing -= len(found)
        self.delivered += len(found)
        if found:
            self.missing_ids = [one for one in self.missing_ids if one not in found]
