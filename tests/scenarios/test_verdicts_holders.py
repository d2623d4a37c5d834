"""Verdicts on transactions that hold things up, on the server and on time, produced on real servers."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import psycopg
import pytest

import wal_forecasts
from fix_scenarios import Stage, renamed
from fix_stack import Database, Stack
from outbox_pipeline.watch.thresholds import MIB
from outbox_pipeline.watch.verdict import VerdictKey
from wal_forecasts import Foretold

pytestmark = [pytest.mark.stack, pytest.mark.matrix]


# --- transactions that hold things up ----------------------------------------------------------


def test_pinned_by_a_writer_in_another_database(
    stage: Stage, new_database: Callable[[Stack], Database]
) -> None:
    stage.thresholds = replace(stage.thresholds, quiet_bytes=64 * MIB)
    other = new_database(stage.server)
    with other.connect() as writer, stage.consumer():
        writer.execute("CREATE TABLE t (x int)")
        stage.execute("CHECKPOINT")
        writer.execute("BEGIN")
        writer.execute("INSERT INTO t VALUES (1)")
        verdict = stage.expect(VerdictKey.PINNED_BY_TRANSACTION, lambda: _advance(stage))
        assert str(writer.info.backend_pid) in verdict.cause
        assert other.name in verdict.cause
        assert writer.info.backend_pid in _follow(stage, verdict.next_step)[0]
        assert writer.info.transaction_status is psycopg.pq.TransactionStatus.INTRANS
        writer.execute("ROLLBACK")
        stage.expect(VerdictKey.HEALTHY, lambda: _advance(stage))


def test_pinned_by_a_prepared_transaction(stage: Stage) -> None:
    with stage.consumer():
        with psycopg.connect(stage.database.conninfo) as conn:
            conn.execute("INSERT INTO other VALUES ('x')")
            conn.execute("PREPARE TRANSACTION 'order''s 17'")
        verdict = stage.expect(VerdictKey.PINNED_BY_TRANSACTION, lambda: _advance(stage))
    found = _follow(stage, verdict.next_step)
    assert len(found) == 1
    assert "order's 17" in found[0]
    assert "ROLLBACK PREPARED" not in verdict.next_step


def _follow(stage: Stage, step: str) -> list[tuple[object, ...]]:
    """Run the statement of a printed `psql -c '...'  # advice` and return its rows."""
    program, option, statement = shlex.split(step, comments=True)
    assert (program, option) == ("psql", "-c")
    with stage.database.connect() as conn:
        return conn.execute(statement.encode()).fetchall()


def _advance(stage: Stage) -> None:
    """Let the server log its running transactions, from which alone restart_lsn moves on."""
    stage.burn(2)
    stage.insert()
    stage.execute("CHECKPOINT")


def test_a_reader_pins_nothing(stage: Stage) -> None:
    stage.thresholds = replace(stage.thresholds, quiet_bytes=64 * MIB)
    with stage.database.connect() as reader, stage.consumer():
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM other")
        stage.expect(VerdictKey.HEALTHY, lambda: _advance(stage), steady=8)


def test_outbox_that_vacuum_cannot_clean(stage: Stage) -> None:
    with stage.database.connect() as holder, stage.consumer():
        holder.execute("BEGIN")
        holder.execute("INSERT INTO other VALUES ('x')")
        stage.execute(
            "WITH gone AS (INSERT INTO outbox (payload) SELECT '{}' FROM generate_series(1, 3000)"
            " RETURNING id) SELECT count(*) FROM gone"
        )
        with stage.database.connect() as conn:
            conn.execute("DELETE FROM outbox")
        stage.execute("VACUUM outbox")
        verdict = stage.expect(VerdictKey.OUTBOX_NOT_VACUUMABLE)
        assert str(holder.info.backend_pid) in verdict.cause
        assert holder.info.backend_pid in _follow(stage, verdict.next_step)[0]


def test_catalogs_held_by_the_slot(stage: Stage) -> None:
    stage.thresholds = replace(stage.thresholds, catalog_xmin_warn=50, pinned_bytes=10**12)
    with stage.database.connect() as holder, stage.consumer():
        holder.execute("BEGIN")
        holder.execute("INSERT INTO other VALUES ('x')")

        def burn_xids() -> None:
            for _ in range(20):
                stage.execute("INSERT INTO other VALUES ('y')")
            stage.insert()

        stage.expect(VerdictKey.CATALOG_XMIN_OLD, burn_xids)


# --- the server --------------------------------------------------------------------------------


def test_wal_that_nobody_explains(stage: Stage) -> None:
    stage.set(archive_command="false", max_wal_size="32MB")
    with stage.consumer():

        def write() -> None:
            stage.burn(16)
            stage.insert()

        verdict = stage.expect(VerdictKey.UNEXPLAINED_WAL, write, steady=1)
    assert "archive_command fails" in verdict.cause


def test_made_without_failover(stage: Stage) -> None:
    renamed(stage, failover=True)
    with stage.consumer():
        stage.expect(VerdictKey.FAILOVER_NOT_READY if stage.major >= 17 else VerdictKey.HEALTHY, stage.insert)


def test_waiting_for_a_standby_that_is_gone(stage: Stage) -> None:
    if stage.major < 17:
        pytest.skip("failover slots come with PostgreSQL 17")
    stage.admin.execute("SELECT pg_drop_replication_slot(%s)", (stage.names.slot,))
    stage.admin.execute(
        "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', failover => true)", (stage.names.slot,)
    )
    stage.admin.execute("SELECT pg_create_physical_replication_slot('standby_1', true)")
    stage.set(synchronized_standby_slots="standby_1")
    with stage.consumer():
        verdict = stage.expect(VerdictKey.FAILOVER_NOT_READY, stage.insert)
    assert "standby_1" in verdict.cause


def test_server_gone(stage: Stage) -> None:
    with stage.consumer():
        stage.expect(VerdictKey.HEALTHY, stage.insert)
        source = stage.sampler
        assert source is not None

        def cut() -> None:
            with suppress(psycopg.Error):
                stage.admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
                    (f"watch {stage.names.slot}",),
                )

        stage.login = {"port": "1"}
        stage.expect(VerdictKey.POSTGRES_UNREACHABLE, cut)
        stage.login = {}
        stage.expect(VerdictKey.HEALTHY, stage.insert)


def test_time_that_is_left_comes_true(stage: Stage) -> None:
    """The slot is invalidated where it was foreseen: expected within 20 %, earliest not later."""
    stage.set(**wal_forecasts.SETTINGS)
    began = wal_forecasts.write(stage.admin, 1)
    foreseen: list[Foretold] = []
    while True:
        written = wal_forecasts.write(stage.admin, 2)
        _, verdict = stage.look()
        if verdict.key is VerdictKey.SLOT_LOST:
            break
        assert written - began < 512 * MIB, "the slot was never lost"
        if found := Foretold.of(stage.history, verdict.seconds_left):
            foreseen.append(found)
        wal_forecasts.pause(verdict)
    half = next(found for found in foreseen if found.seen_from > (began + written) / 2)
    half.check(began, written)
