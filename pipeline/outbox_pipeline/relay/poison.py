"""Rows that cannot be published: which ones, why, and what is done with them. Pure.

Three kinds of refusal are told apart. A *row* is at fault when it is too large or broken: it goes to
the dead letters. A *topic* is at fault when it is missing or forbidden: its rows wait, others go on.
Everything else passes: the same batch is sent again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from confluent_kafka import KafkaError

from outbox_connectors import record
from outbox_connectors.record import Record, Row

_AGGREGATE_TYPE: Final = re.compile(record.AGGREGATE_TYPE_PATTERN)
_NEEDED: Final = ("aggregate_type", "aggregate_id", "event_type", "event_version", "occurred_at")

# An upper bound of what a record batch of one record adds to key, value and headers: 61 bytes of batch,
# 21 of record, and the lengths of each header.
_FRAME_BYTES: Final = 96
_FRAME_BYTES_PER_HEADER: Final = 6

ROW_AT_FAULT: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.POLICY_VIOLATION,
    }
)
TOPIC_AT_FAULT: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
    }
)


class OnPoison(StrEnum):
    """What happens to the aggregate of a row that can never be published."""

    SKIP = "skip"  # later events of the aggregate go on without it
    BLOCK_AGGREGATE = "block_aggregate"  # they wait until the dead letter is requeued or dropped
    STOP = "stop"  # the relay ends, nothing is moved


class Fault(StrEnum):
    """What caused the refusal of a batch."""

    ROW = "row"
    TOPIC = "topic"
    NOBODY = "nobody"


def fault_of(code: int) -> Fault:
    """Derive the cause of a refusal from Kafka's error code."""
    if code in ROW_AT_FAULT:
        return Fault.ROW
    return Fault.TOPIC if code in TOPIC_AT_FAULT else Fault.NOBODY


def why_undeliverable(row: Row) -> str:
    """Say why a row could never become a record; empty when it can.

    The table's constraints make such rows impossible, unless they were disabled.
    """
    for name in _NEEDED:
        if getattr(row, name) is None:
            return f"{name} is NULL"
    if not row.aggregate_id:
        return "aggregate_id is empty"
    aggregate_type = row.aggregate_type
    if aggregate_type in (".", "..") or not _AGGREGATE_TYPE.fullmatch(aggregate_type):
        return f"aggregate_type {aggregate_type[:60]!r} cannot be part of a topic name"
    return ""


def size_of(made: Record) -> int:
    """Count the bytes that a record takes in a request of its own, at most."""
    headers = sum(len(name) + len(value or b"") + _FRAME_BYTES_PER_HEADER for name, value in made.headers)
    return len(made.key) + len(made.value or b"") + headers + _FRAME_BYTES


@dataclass(frozen=True, slots=True)
class Search:
    """A binary search for the row that makes Kafka refuse a batch: halves, in order, until one row is left.

    A whole request fails when one of its records is refused, so the answer does not name the row.
    """

    suspects: int = 0  # among the next so many rows is one that was refused; 0: nothing is known

    def limit(self, usual: int) -> int:
        """Say how many rows to send next."""
        return max(1, self.suspects // 2) if self.suspects else usual

    def sent(self, count: int) -> Search:
        """Go on after `count` rows were taken."""
        return Search(max(0, self.suspects - count))

    def refused(self, count: int) -> Search:
        """Go on after a batch of `count` rows was refused; 1 row is found."""
        return Search(count if count > 1 else 0)
