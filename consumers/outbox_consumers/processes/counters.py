"""Counters of a consumer."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class ConsumerCounters:
    """Counts since the consumer started. Only its own thread writes them; reading needs no lock."""

    processed: int = 0  # events whose effects are committed
    duplicates: int = 0  # handled before, nothing done
    skipped: int = 0  # no handler for the type
    untyped: int = 0  # skipped, since the record names no type
    stale: int = 0  # from before the window that the inbox remembers
    rejected: int = 0  # the handler raised Reject
    dead_letters: int = 0  # rejected, or failed too often
    parked: int = 0  # put into the queue of their aggregate
    unparked: int = 0  # parked events that were handled
    failures: int = 0  # attempts that raised
    transient: int = 0  # temporary errors of the database
    batches: int = 0  # transactions that held a whole batch
    singles: int = 0  # transactions for one event, after a batch failed
    without_id: int = 0  # records without an id, or with one that identifies nothing
    falling_ids: int = 0  # numeric ids that are lower than an earlier one of their partition
    revoked: int = 0  # partitions revoked or lost
    fenced: int = 0  # offsets not stored, since the partition was not assigned any more
    commit_errors: int = 0  # offset commits that Kafka refused
    stalls: int = 0  # times that Kafka accepted no offset commits for too long
    evictions: int = 0  # times that max.poll.interval.ms was exceeded

    def __str__(self) -> str:
        parts = [f"{name} {count}" for name, count in self.document().items() if count]
        return ", ".join(parts) or "nothing done"

    def document(self) -> dict[str, int]:
        """Return the counters by name, for JSON and metrics."""
        return asdict(self)
