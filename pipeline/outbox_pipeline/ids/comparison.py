"""Compare the ids of rows in tables with the ids of records in topics, however many there are.

The one place that decides which rows are published: audit, recover, switch, prune and the admission of
a relay ask it. Ids are spooled to temporary files, 16 bytes each, and compared one bucket at a time, so
memory stays the same for a thousand ids and for a hundred million.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Self

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_pipeline.ids import in_tables
from outbox_pipeline.ids.in_topics import Topics
from outbox_pipeline.ids.spool import Spool, temporary_spool

Connection = psycopg.Connection[TupleRow]
# Between the time of an event and that of its record, for clocks that differ. Where this does not find
# every id, the topics are read from their beginning.
CLOCK_TOLERANCE: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class ComparedIds:
    """One bucket of the ids of both sides. An id is in the same bucket on both."""

    rows: set[bytes]
    records: list[bytes]  # in the order of the topics; an id that was published twice is there twice

    @property
    def published(self) -> set[bytes]:
        """The ids of rows that a topic has."""
        return self.rows.intersection(self.records)

    @property
    def missing(self) -> set[bytes]:
        """The ids of rows that no topic has."""
        return self.rows.difference(self.records)


def compare(rows: Spool, records: Spool) -> Iterator[ComparedIds]:
    """Yield the ids of both sides bucket by bucket, always in the same order."""
    for ours, theirs in zip(rows.buckets(), records.buckets(), strict=True):
        yield ComparedIds(set(ours), theirs)


def missing_ids(ids: set[bytes], chunks: Iterator[list[bytes]]) -> set[bytes]:
    """Find which of some ids, few enough for memory, are in none of the chunks. Stops when all are found."""
    missing = set(ids)
    for chunk in chunks:
        missing.difference_update(chunk)
        if not missing:
            break
    return missing


def missing_in_topics(definition: Definition, ids: set[bytes], oldest: datetime) -> set[bytes]:
    """Find which of some ids, few enough for memory, no topic has. Reads on only until all are found.

    `oldest` is the time of the oldest of these events. Raises Unreachable.
    """
    missing = ids
    for begin in (oldest - CLOCK_TOLERANCE, None):
        with Topics(definition, begin=begin) as topics:
            missing = missing_ids(missing, topics.to_the_end())
        if not missing:
            break
    return missing


@contextmanager
def spooled_rows(
    conn: Connection,
    tables: Sequence[sql.Identifier],
    *,
    since: datetime | None = None,
    until: int | None = None,
) -> Iterator[Spool]:
    """Spool the ids of rows from one snapshot, as `in_tables.read` does, for the duration of a block."""
    with temporary_spool() as rows:
        in_tables.read(conn, tables, since, rows, until=until)
        yield rows


class SpooledTopics:
    """The ids of a pipeline's records, spooled by `read_on`. Use it as a context manager.

    `begin` and `since` leave out records, as in `Topics`.
    """

    def __init__(
        self, definition: Definition, *, begin: datetime | None = None, since: datetime | None = None
    ) -> None:
        with ExitStack() as opened:
            self.ids = opened.enter_context(temporary_spool())
            self.topics = opened.enter_context(Topics(definition, begin=begin, since=since))
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def read_on(self) -> int:
        """Read up to the end of every topic; called again, only what has come since.

        Returns the number of ids that are spooled now. Raises Unreachable.
        """
        for chunk in self.topics.to_the_end():
            self.ids.add(chunk)
        return self.ids.count
