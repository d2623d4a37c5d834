"""A consumer of a logical slot, in raw protocol, that can misbehave in every way a real one does."""

from __future__ import annotations

import select
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

import psycopg
from psycopg import pq

from waiting import PATIENCE_SECONDS, until

EPOCH_2000 = 946_684_800
STATUS_SECONDS = 0.2
OBJECT_IN_USE = b"55006"


class Manner(Enum):
    """How the consumer behaves."""

    CONFIRMS = "confirms everything it got"
    CONFIRMS_COMMITS = "confirms only what ended in a commit it saw, as Debezium does"
    NEVER_CONFIRMS = "answers, but confirms nothing: the sink is down"
    FROZEN = "neither reads nor answers"


class ReplicationClient:
    """Holds a slot in a thread of its own until it is closed."""

    def __init__(
        self,
        conninfo: str,
        slot: str,
        publication: str,
        manner: Manner = Manner.CONFIRMS,
        application: str = "Debezium Streaming",
    ) -> None:
        self.manner = manner
        self.messages = 0
        self._confirmed = 0
        self._stop = threading.Event()
        self._conninfo = conninfo
        settings = f"{conninfo} replication=database application_name='{application}'"
        self._conn = pq.PGconn.connect(settings.encode())
        assert self._conn.status == pq.ConnStatus.OK, self._conn.error_message
        names = publication.replace('"', '""').replace("'", "''")
        self._start(
            f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names '\"{names}\"')"
        )
        self._thread = threading.Thread(target=self._run, name=f"consumer of {slot}", daemon=True)
        self._thread.start()

    def _start(self, command: str) -> None:
        """Begin, as soon as whoever held the slot before has let go of it."""
        until(lambda: self._streams(command), "START_REPLICATION")

    def _streams(self, command: str) -> bool:
        answer = self._conn.exec_(command.encode())
        if answer.status == pq.ExecStatus.COPY_BOTH:
            return True
        assert answer.error_field(pq.DiagnosticField.SQLSTATE) == OBJECT_IN_USE, answer.error_message
        return False

    def close(self) -> None:
        """Let go of the slot, and wait until the server knows: it notices a closed socket only in time."""
        self._stop.set()
        self._thread.join(PATIENCE_SECONDS)
        pid = self._conn.backend_pid
        self._conn.finish()
        held = "SELECT slot_name FROM pg_replication_slots WHERE active_pid = %s"
        with psycopg.connect(self._conninfo, autocommit=True) as conn:
            until(lambda: not conn.execute(held, (pid,)).fetchone(), f"process {pid} letting go of its slot")

    def _run(self) -> None:
        last = 0.0
        received = 0
        while not self._stop.is_set():
            if self.manner is Manner.FROZEN:
                time.sleep(0.05)
                continue
            select.select([self._conn.socket], [], [], 0.05)
            try:
                self._conn.consume_input()
                for message in self._arrived():
                    received = max(received, self._read(message))
                if time.monotonic() - last > STATUS_SECONDS:
                    self._answer(received)
                    last = time.monotonic()
            except Exception:  # the server ended the session: nothing more to do
                return

    def _arrived(self) -> Iterator[bytes]:
        while True:
            length, data = self._conn.get_copy_data(1)
            if length <= 0:
                return
            yield bytes(data)

    def _read(self, message: bytes) -> int:
        """Read one message and return the position up to which everything has now arrived."""
        if message[:1] == b"k":
            (end,) = struct.unpack("!Q", message[1:9])
            if self.manner is Manner.CONFIRMS:
                self._confirmed = max(self._confirmed, end)
            return int(end)
        start, _ = struct.unpack("!QQ", message[1:17])
        self.messages += 1
        if message[25:26] == b"C":  # pgoutput's Commit: flags, commit position, end position
            (end,) = struct.unpack("!Q", message[35:43])
            if self.manner in (Manner.CONFIRMS, Manner.CONFIRMS_COMMITS):
                self._confirmed = max(self._confirmed, end)
        return int(start)

    def _answer(self, received: int) -> None:
        now = int((time.time() - EPOCH_2000) * 1_000_000)
        confirmed = self._confirmed
        self._conn.put_copy_data(b"r" + struct.pack("!QQQQB", received, confirmed, confirmed, now, 0))
        self._conn.flush()


@contextmanager
def consuming(
    conninfo: str,
    slot: str,
    publication: str,
    manner: Manner = Manner.CONFIRMS,
    application: str = "Debezium Streaming",
) -> Iterator[ReplicationClient]:
    """Consume a slot for the length of a block."""
    client = ReplicationClient(conninfo, slot, publication, manner, application)
    try:
        yield client
    finally:
        client.close()
