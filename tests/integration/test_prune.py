"""`outboxctl prune` removes what is old and proven, and nothing else."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from fix_relay import NewRelayed, Relayed
from outbox_connectors.errors import ExitCode
from outbox_pipeline import sql as statements
from outbox_pipeline.errors import Refused
from outbox_pipeline.operations import prune
from outbox_pipeline.operations.prune import Pruned
from outbox_pipeline.relay import Mode

pytestmark = pytest.mark.stack


@contextlib.contextmanager
def confirmed(relayed: Relayed) -> Iterator[None]:
    """Confirm the slot all the time, as a connector does that has delivered everything."""
    stop = threading.Event()

    def confirm() -> None:
        with relayed.connect() as conn:
            while not stop.wait(0.02):
                conn.execute(
                    "SELECT pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())",
                    (relayed.definition.postgres.slot,),
                )

    thread = threading.Thread(target=confirm)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def delivered_by_a_connector(relayed: Relayed, count: int) -> None:
    """Leave an outbox as a connector would: a slot, and rows that are in the topics and in the table."""
    relayed.write(count)
    with relayed.connect() as conn:
        conn.execute("CREATE TABLE kept AS SELECT * FROM outbox")
        relayed.carry()
        conn.execute("INSERT INTO outbox OVERRIDING SYSTEM VALUE SELECT * FROM kept")
        conn.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (relayed.definition.postgres.slot,)
        )


def age(relayed: Relayed, by: str, limit: int) -> None:
    """Let the first rows be older, by their own clock."""
    with relayed.connect() as conn:
        conn.execute(
            "UPDATE outbox SET occurred_at = occurred_at - %s::interval"
            " WHERE position IN (SELECT position FROM outbox ORDER BY position LIMIT %s)",
            (by, limit),
        )


def run(relayed: Relayed, *, dry_run: bool = False) -> Pruned:
    with relayed.site.admin() as conn:
        now = datetime.now(UTC)
        return prune.prune(conn, relayed.definition, now, dry_run=dry_run, say=print)


def test_old_rows_leave_and_young_ones_stay(relayed: Relayed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "BATCH_ROWS", 70)
    delivered_by_a_connector(relayed, 300)
    assert run(relayed).rows == 0
    age(relayed, "8 days", 200)
    assert run(relayed, dry_run=True).rows == 200
    assert relayed.left() == 300
    with confirmed(relayed):
        done = run(relayed)
    assert done.rows == 200
    assert done.reusable_bytes > 200 * 100
    assert relayed.left() == 100


def test_what_no_topic_has_stays(relayed: Relayed) -> None:
    delivered_by_a_connector(relayed, 100)
    relayed.write(10)
    age(relayed, "8 days", 110)
    with confirmed(relayed):
        pruned = relayed.outboxctl("--json", "prune")
        document = json.loads(pruned.stdout)
        assert (pruned.returncode, document["rows"], document["unproven"]) == (ExitCode.OK, 100, 10)
        assert relayed.left() == 10
        refused = relayed.outboxctl("--json", "prune")
    assert refused.returncode == ExitCode.REFUSED
    assert "no topic has them" in json.loads(refused.stdout)["error"]["problem"]


def test_the_slot_has_to_agree(relayed: Relayed, monkeypatch: pytest.MonkeyPatch) -> None:
    delivered_by_a_connector(relayed, 30)
    age(relayed, "8 days", 30)
    monkeypatch.setattr(prune, "CONFIRM_SECONDS", 0.0)
    with pytest.raises(Refused, match="is confirmed up to"):
        run(relayed)
    with relayed.connect() as conn:
        conn.execute("SELECT pg_drop_replication_slot(%s)", (relayed.definition.postgres.slot,))
    assert run(relayed).rows == 0  # as far as is written down the outbox is the relay's: nothing is delivered
    with relayed.connect() as conn:
        conn.execute("UPDATE outbox_road SET road = 'cdc'")
    with pytest.raises(Refused, match="is gone") as refused:
        run(relayed)
    assert "recover" in refused.value.remedy
    assert relayed.left() == 30


def test_days_are_dropped(new_relayed: NewRelayed, monkeypatch: pytest.MonkeyPatch) -> None:
    relayed = new_relayed(outbox={"partition": "daily"})
    days = [datetime.now(UTC).date() - timedelta(days=back) for back in (9, 10)]
    with relayed.connect() as conn:
        for day in days:
            conn.execute(
                f"CREATE TABLE outbox_{day:%Y%m%d} PARTITION OF outbox"
                f" FOR VALUES FROM ('{day} 00:00+00') TO ('{day + timedelta(days=1)} 00:00+00')"
            )
    delivered_by_a_connector(relayed, 100)
    relayed.write(1)  # in no topic
    age(relayed, "10 days", 101)
    age(relayed, "-1 days", 60)
    monkeypatch.setattr(prune, "LOCK_MILLISECONDS", "100")
    with confirmed(relayed):
        with relayed.connect() as reader, reader.transaction():
            reader.execute("SELECT count(*) FROM outbox")
            locked = run(relayed)
        done = run(relayed)
    assert (locked.partitions, locked.rows) == ([], 0)
    assert "in use by another session" in locked.stopped
    assert done.partitions == [f"outbox_{days[0]:%Y%m%d}"]
    assert (done.rows, done.unproven, relayed.left()) == (60, 1, 41)
    assert done.freed_bytes > 0


@pytest.mark.parametrize("kind", ["snapshot", "writer", "prepared"])
def test_an_old_transaction_is_waited_for(
    relayed: Relayed, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It would keep the deleted rows as dead ones, whatever it has done so far."""
    delivered_by_a_connector(relayed, 50)
    age(relayed, "8 days", 50)
    monkeypatch.setattr(prune, "OLD_SNAPSHOT_SECONDS", 0.0)
    with confirmed(relayed), relayed.connect() as other, relayed.connect() as conn:
        open_transaction(other, kind)
        # Sessions of the test's own helpers must not be taken for it.
        found = conn.execute(statements.get("prune_read_oldest_snapshot")).fetchone()
        assert found is not None
        assert ("prepared transaction" in found[1]) is (kind == "prepared")
        with pytest.raises(Refused, match="has had a snapshot"):
            run(relayed)
        other.execute("ROLLBACK" if kind != "prepared" else "ROLLBACK PREPARED 'old'")
    assert relayed.left() == 50


def open_transaction(conn: psycopg.Connection, kind: str) -> None:
    conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ" if kind == "snapshot" else "BEGIN")
    if kind == "snapshot":
        conn.execute("SELECT count(*) FROM outbox")
        return
    conn.execute("CREATE TABLE other (id int)")
    if kind == "prepared":
        try:
            conn.execute("PREPARE TRANSACTION 'old'")
        except psycopg.errors.ObjectNotInPrerequisiteState:
            pytest.skip("the server has no prepared transactions")


def test_a_prune_stops_when_a_snapshot_gets_old(relayed: Relayed, monkeypatch: pytest.MonkeyPatch) -> None:
    delivered_by_a_connector(relayed, 50)
    age(relayed, "8 days", 50)
    monkeypatch.setattr(prune, "BATCH_ROWS", 20)

    def and_then_old(text: str) -> None:
        print(text)
        monkeypatch.setattr(prune, "OLD_SNAPSHOT_SECONDS", 0.0)

    with confirmed(relayed), relayed.connect() as reader, relayed.site.admin() as conn:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM outbox")
        done = prune.prune(conn, relayed.definition, datetime.now(UTC), say=and_then_old)
        reader.execute("COMMIT")
    assert (done.rows, relayed.left()) == (20, 30)
    assert "has had a snapshot" in done.stopped


def test_a_history_is_pruned_by_its_own_age(new_relayed: NewRelayed) -> None:
    relayed = new_relayed(archive=True)
    relayed.write(100)
    relayed.carry(Mode.ARCHIVE)
    relayed.write(5)
    age(relayed, "30 days", 5)  # old and not delivered
    with relayed.connect() as conn:
        conn.execute(
            "UPDATE outbox_history SET relayed_at = relayed_at - interval '8 days' WHERE position <= 40"
        )
    assert run(relayed).rows == 40
    assert relayed.left() == 5


def test_clocks_that_are_wrong_prove_nothing(relayed: Relayed) -> None:
    """Times of years ago and of years to come, in ids, rows or records, do not make a row delivered."""
    delivered_by_a_connector(relayed, 40)
    relayed.write(20)
    with relayed.connect() as conn:
        # Half of them says it happened long ago, half that it will happen; the ids follow.
        for remainder, moment in enumerate(("1999-01-01", "2087-01-01")):
            conn.execute(
                "UPDATE outbox SET occurred_at = %s WHERE mod(position, 2) = %s", (moment, remainder)
            )
        conn.execute(
            "UPDATE outbox SET id = overlay(id::text placing '00000000-0000-7' from 1 for 15)::uuid"
            " WHERE position > 40 AND mod(position, 2) = 0"
        )
    with confirmed(relayed):
        done = run(relayed)
        assert (done.rows, done.unproven) == (20, 10)  # delivered, and old by their own clock
        with pytest.raises(Refused, match="no topic has them"):
            run(relayed)
    assert relayed.left() == 40
