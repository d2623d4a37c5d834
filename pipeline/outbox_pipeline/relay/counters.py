"""Counters of a relay, summed over its workers and shown at its end."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields


@dataclass(slots=True)
class RelayCounters:
    """Counts since a worker started."""

    published: int = 0  # events whose transaction committed
    batches: int = 0
    sent_again: int = 0  # batches of a previous owner that were not in the topics
    refused: int = 0  # batches that Kafka refused
    fenced: int = 0  # producers that were fenced by another
    taken: int = 0  # shards taken over
    dead_letters: int = 0

    def __add__(self, other: RelayCounters) -> RelayCounters:
        return RelayCounters(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(RelayCounters)))

    def document(self) -> dict[str, int]:
        """Show them as JSON."""
        return asdict(self)
