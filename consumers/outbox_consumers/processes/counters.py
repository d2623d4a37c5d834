"""What a consumer has done, in numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class ConsumerCounters:
    """Counts since the consumer started. Only its own thread writes them; reading needs no lock."""

    processed: int = 0  # effects committed
    duplicates: int = 0  # seen before, nothing done
    skipped: int = 0  # no handler for the type
    untyped: int = 0  # left out, since the record names no type
    stale: int = 0  # older than the inbox remembers
    rejected: int = 0  # the handler said Reject
    dead_letters: int = 0  # given up: rejected, or failed too often
    parked: int = 0  # put into the queue of their aggregate
    unparked: int = 0  # handled from there
    failures: int = 0  # attempts that raised
    transient: int = 0  # database errors that pass by themselves
    batches: int = 0  # transactions that held a whole batch
    singles: int = 0  # transactions for one event, to find a bad one
    without_id: int = 0  # records without an id, or with one that identifies nothing
    falling_ids: int = 0  # numbers that are lower than one before them in their partition
    revoked: int = 0  # partitions taken away, with and without notice
    fenced: int = 0  # offsets not stored, since the partition was gone
    commit_errors: int = 0  # Kafka refused an offset commit
    stalls: int = 0  # times Kafka took no commits for too long
    evictions: int = 0  # max.poll.interval.ms exceeded

    def __str__(self) -> str:
        parts = [f"{name} {count}" for name, count in self.document().items() if count]
        return ", ".join(parts) or "nothing done"

    def document(self) -> dict[str, int]:
        """Give the counters by name, for JSON and metrics."""
        return asdict(self)
