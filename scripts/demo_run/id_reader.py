"""Read the event ids of one run from the outbox, the topics, the inbox and the invoices."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

import psycopg

from outbox_connectors.definition import Definition
from outbox_pipeline import outbox
from outbox_pipeline.servers.topic_reader import Arrival, Reader, topic_pattern

READ_SECONDS = 300.0  # a busy machine may need minutes; records not read by then count as missing

WRITTEN = "SELECT id FROM outbox WHERE correlation_id = %(run)s ORDER BY position"
CLAIMED = "SELECT event_id FROM inbox WHERE consumer = 'billing' AND event_id >= %(since)s ORDER BY event_id"
APPLIED = "SELECT event_id FROM invoice WHERE event_id >= %(since)s ORDER BY number"


@dataclass(slots=True)
class IdReader:
    """Connections to both databases and a reader of the topics; changes nothing.

    UUIDv7 ids grow with time, so `since` tells this run's invoices from those of earlier runs. In the
    outbox and the topics, `run` (the correlation id) does. Events of other producers that arrive
    meanwhile are recognized in the topics and left out, so read the topics to the end first.
    """

    run: str
    since: UUID
    shop: psycopg.Connection
    billing: psycopg.Connection
    reader: Reader
    pattern: re.Pattern[str]
    delivered: list[UUID] = field(default_factory=list)
    foreign: set[UUID] = field(default_factory=set)

    @classmethod
    def open(cls, environ: Mapping[str, str], definition: Definition) -> IdReader:
        """Connect, seek to the end of every topic, and only then create the id of the run."""
        shop, billing = (
            psycopg.connect(
                autocommit=True,
                dbname=dbname,
                host=environ["PGHOST"],
                port=environ["PGPORT"],
                user=environ["PGUSER"],
                password=environ["PGPASSWORD"],
                options="",
                application_name="demo",
            )
            for dbname in ("shop", "billing")
        )
        reader = Reader(definition.kafka)
        pattern = topic_pattern(definition.kafka.topic)
        reader.follow(pattern, from_end=True)
        since = outbox.new_id()
        return cls(f"demo-{since}", since, shop, billing, reader, pattern)

    def close(self) -> None:
        """Close the connections and the reader."""
        self.reader.close()
        self.shop.close()
        self.billing.close()

    def read_topics(self, seconds: float) -> None:
        """Read the records that arrive within `seconds`."""
        for arrived in self.reader.read(seconds):
            self._count(arrived)

    def read_topics_to_the_end(self) -> None:
        """Read every record that is in the topics now."""
        self.reader.follow(self.pattern)
        deadline = time.monotonic() + READ_SECONDS
        while self.reader.behind() and time.monotonic() < deadline:
            self.read_topics(0.2)

    def _count(self, arrived: Arrival) -> None:
        text = arrived.header("id")
        if text is None:
            return
        event_id = UUID(text)
        if arrived.header("correlation_id") == self.run:
            self.delivered.append(event_id)
        else:
            self.foreign.add(event_id)

    def written(self) -> list[UUID]:
        """Read the ids of this run's outbox rows."""
        return _ids(self.shop, WRITTEN, run=self.run)

    def claimed(self) -> list[UUID]:
        """Read the ids that billing's inbox has recorded as handled."""
        return self._of_this_run(_ids(self.billing, CLAIMED, since=self.since))

    def applied(self) -> list[UUID]:
        """Read the event id of each invoice."""
        return self._of_this_run(_ids(self.billing, APPLIED, since=self.since))

    def _of_this_run(self, ids: list[UUID]) -> list[UUID]:
        return [each for each in ids if each not in self.foreign]


def _ids(conn: psycopg.Connection, query: str, **values: object) -> list[UUID]:
    try:
        return [row[0] for row in conn.execute(query.encode(), values)]
    except psycopg.errors.UndefinedTable:  # billing has not created it yet
        return []
