"""A worker's session with PostgreSQL: locks, batches and notifications, all on one connection.

The session proves ownership. The locks of shards last as long as it does, so a query on it that is made
after a producer was created proves that this worker still owned the shard then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import LiteralString

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow, args_row

from outbox_connectors.definition import Definition
from outbox_connectors.record import Row
from outbox_pipeline import sql as statements
from outbox_pipeline.relay.names import RelayNames, identifiers
from outbox_pipeline.relay.read_floor import Horizon, ReadFloors
from outbox_pipeline.relay.settings import IDLE_SESSION_MS, MAX_BATCH_BYTES, Mode
from outbox_pipeline.servers import postgres

Connection = psycopg.Connection[TupleRow]
LAST_POSITION = 2**63 - 1
BEHIND = "behind"  # the notification that rows were put at old positions: relay_requeue_dead_letters


@dataclass(frozen=True, slots=True)
class WorkersSeen:
    """The number of workers, the shards that have an owner, and those that this session owns.

    `slot`: there is a connector's slot too, created since the relay started.
    """

    workers: int
    held: frozenset[int]
    mine: frozenset[int]
    slot: bool = False


class RelaySession:
    """One worker's connection. Every call is one round trip; errors of psycopg pass through."""

    def __init__(
        self, conn: Connection, names: RelayNames, placeholders: Mapping[str, sql.Composable]
    ) -> None:
        self.conn = conn
        self.until = LAST_POSITION  # rows after this position are not for this worker
        self.slot = ""  # the slot by which a connector would read this outbox
        self._names = names
        self._placeholders = placeholders
        self._composed: dict[str, sql.Composed] = {}
        self._heard = True  # rows may have been written before LISTEN
        self._floors = ReadFloors()
        conn.add_notify_handler(self._hear)  # for those that arrive with the answer of a query

    @classmethod
    def open(cls, definition: Definition, names: RelayNames, shards: int) -> RelaySession:
        """Connect, set the session up and listen. Raises Unreachable."""
        conn = postgres.as_admin(definition, f"outboxctl relay {definition.pipeline}")
        try:
            session = cls(conn, names, identifiers(names, definition.outbox, shards))
            session.slot = definition.postgres.slot
            conn.execute(statements.get("relay_set_session"), {"idle_milliseconds": str(IDLE_SESSION_MS)})
            conn.execute(session._statement("relay_listen"))
        except BaseException:
            conn.close()
            raise
        return session

    def close(self) -> None:
        """End the session: every lock is free again."""
        self.conn.close()

    def _statement(self, name: LiteralString) -> sql.Composed:
        if name not in self._composed:
            self._composed[name] = sql.SQL(statements.get(name)).format(**self._placeholders)
        return self._composed[name]

    def notified(self) -> bool:
        """Read the notifications that have arrived, without waiting; return whether there was one."""
        self.conn.pgconn.consume_input()
        while (found := self.conn.pgconn.notifies()) is not None:
            self._take(found.extra.decode())
        heard, self._heard = self._heard, False
        return heard

    def _hear(self, found: psycopg.Notify) -> None:
        self._take(found.payload)

    def _take(self, payload: str) -> None:
        self._heard = True
        if payload == BEHIND:
            self._floors.forget()

    # -- ownership -----------------------------------------------------------------------------------

    def try_enter(self) -> bool:
        """Show this session among the workers, unless a switch between relay and connector is running."""
        row = self.conn.execute(statements.get("relay_try_enter"), {"lock": self._names.lock}).fetchone()
        return bool(row and row[0])

    def workers(self) -> WorkersSeen:
        """Read which workers there are and which shards they own."""
        with self.conn.cursor(row_factory=args_row(_workers_seen)) as cursor:
            asked = {"lock": self._names.lock, "slot": self.slot}
            found = cursor.execute(statements.get("relay_look"), asked).fetchone()
        return found or WorkersSeen(0, frozenset(), frozenset())

    def try_shard(self, shard: int) -> bool:
        """Take a shard's lock if it is free."""
        values = {"lock": self._names.lock, "shard": shard}
        self._floors.forget(shard)
        row = self.conn.execute(statements.get("relay_try_shard"), values).fetchone()
        return bool(row and row[0])

    def release_shard(self, shard: int) -> None:
        """Release a shard's lock."""
        values = {"lock": self._names.lock, "shard": shard}
        self.conn.execute(statements.get("relay_give_shard"), values)

    # -- read floors --------------------------------------------------------------------------------------

    def raise_read_floors(self, shards: Collection[int], now: float) -> None:
        """Find the positions from which these shards have to be read, see `read_floor`. Three round trips."""
        settled = self._floors.settled(self._horizon(), now)
        if settled is None:
            return
        values = {
            "shards": list(shards),
            "floors": [self._floors.of(shard) for shard in shards],
            "until": settled,
        }
        self._floors.raise_to(
            dict(self.conn.execute(self._statement("relay_read_lowest"), values).fetchall())
        )

    def _horizon(self) -> Horizon:
        # In this order: a writer that took a position before this read holds a lock or has ended.
        table = {"table": self._names.qualified(self._names.outbox).as_string(self.conn)}
        last = self.conn.execute(statements.get("relay_last_position"), table).fetchone()
        found = self.conn.execute(statements.get("relay_read_writers"), table).fetchall()
        return Horizon(int(last[0]) if last else None, frozenset(writer for (writer,) in found))

    # -- batches -------------------------------------------------------------------------------------

    def waiting(self, shards: Collection[int], unwritable: Collection[str]) -> frozenset[int]:
        """Find out which of these shards have rows that may be published."""
        values = {
            "shards": list(shards),
            "floors": [self._floors.of(shard) for shard in shards],
            "unwritable": list(unwritable),
            "until": self.until,
        }
        return frozenset(found for (found,) in self.conn.execute(self._statement("relay_waiting"), values))

    def noted(self, shard: int) -> int | None:
        """Read the number of a shard's batch that was in flight last."""
        row = self.conn.execute(self._statement("relay_read_batch"), {"shard": shard}).fetchone()
        return int(row[0]) if row else None

    def noted_rows(self, shard: int) -> list[Row]:
        """Read the rows of that batch."""
        with self.conn.cursor(row_factory=args_row(Row), binary=True) as cursor:
            return cursor.execute(self._statement("relay_read_batch_rows"), {"shard": shard}).fetchall()

    def next_rows(
        self,
        shard: int,
        n: int,
        limit: int,
        *,
        published: int | None,
        unwritable: Collection[str],
        mode: Mode,
    ) -> list[Row]:
        """Remove the batch `published`, choose the next rows and note them as batch `n`, all or nothing.

        One statement and no pipeline: PostgreSQL stops the clock of idle_session_timeout when a message
        arrives, and starts it when it says that it is ready for the next. psycopg may end a pipeline
        with a Flush, as its timing has it, which nothing answers: the clock would stand still and a frozen
        owner keep its shards for ever (a test shows it). Returns [] for none; then nothing is noted.
        """
        choice = {
            "shard": shard,
            "n": n,
            "limit": limit,
            "max_bytes": MAX_BATCH_BYTES,
            "published": published,
            "floor": self._floors.of(shard),
            "until": self.until,
            "unwritable": list(unwritable),
        }
        name: LiteralString = "relay_read_next" if mode is Mode.DELETE else "relay_read_next_archiving"
        with self.conn.cursor(row_factory=args_row(Row), binary=True) as cursor:
            return cursor.execute(self._statement(name), choice).fetchall()

    def clear(self, shard: int, published: int, mode: Mode) -> None:
        """Remove a published batch without choosing another."""
        name: LiteralString = "relay_delete_batch" if mode is Mode.DELETE else "relay_archive_batch"
        self.conn.execute(self._statement(name), {"shard": shard, "n": published})

    def note(self, shard: int, n: int, rows: Sequence[Row]) -> None:
        """Note the rows of batch `n`, none of which may be in the topics yet."""
        values = {"shard": shard, "n": n, "ids": [row.id for row in rows]}
        self.conn.execute(self._statement("relay_note_ids"), values)

    def add_dead_letter(self, row: Row, cause: str, *, attempts: int, blocks: bool) -> None:
        """Move a row to the dead letters."""
        values = {"id": row.id, "cause": cause, "attempts": attempts, "blocks": blocks}
        self.conn.execute(self._statement("relay_add_dead_letter"), values)


def _workers_seen(workers: int, held: Sequence[int], mine: Sequence[int], slot: bool) -> WorkersSeen:
    return WorkersSeen(workers, frozenset(held), frozenset(mine), slot)


def read_settings(conn: Connection, names: RelayNames) -> tuple[str, int] | None:
    """Read the pipeline and the number of shards that an outbox is relayed with; None: not set up."""
    placeholders = {"settings": names.qualified(names.settings)}
    query = sql.SQL(statements.get("relay_read_settings")).format(**placeholders)
    try:
        row = conn.execute(query).fetchone()
    except psycopg.errors.UndefinedTable:
        return None
    return (str(row[0]), int(row[1])) if row else None
