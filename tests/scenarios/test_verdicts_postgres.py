"""Each verdict that PostgreSQL alone can show, produced on real servers. A raw client plays the connector."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from psycopg import sql

from fix_scenarios import Stage, renamed
from fix_stack import Database, Stack
from outbox_pipeline.watch.thresholds import Thresholds
from outbox_pipeline.watch.verdict import End, VerdictKey
from replication_client import Manner

pytestmark = [pytest.mark.stack, pytest.mark.matrix]


def test_healthy_load(stage: Stage) -> None:
    with stage.consumer(Manner.CONFIRMS_COMMITS):
        stage.expect(VerdictKey.HEALTHY, stage.insert, steady=10)


def test_nothing_to_do(stage: Stage) -> None:
    with stage.consumer():
        stage.expect(VerdictKey.IDLE)


def test_names_that_need_quotes(stage: Stage) -> None:
    odd = 'Größe "x" 出'
    stage.admin.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(odd)))
    stage.admin.execute(
        sql.SQL(
            "CREATE TABLE {} (id uuid DEFAULT gen_random_uuid(), occurred_at timestamptz DEFAULT now(),"
            " payload jsonb)"
        ).format(sql.Identifier(odd, odd))
    )
    stage.admin.execute(
        sql.SQL("CREATE PUBLICATION {} FOR TABLE {}").format(sql.Identifier(odd), sql.Identifier(odd, odd))
    )
    renamed(stage, table=f"{odd}.{odd}", publication=odd)
    with stage.consumer():
        stage.expect(VerdictKey.HEALTHY, stage.insert)


def test_a_role_without_rights_sees_enough(stage: Stage) -> None:
    role = f"r_{stage.database.name}"
    stage.admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x'").format(sql.Identifier(role)))
    stage.login = {"user": role, "password": "x"}
    with stage.consumer():
        verdict = stage.expect(VerdictKey.HEALTHY, stage.insert)
    assert "GRANT pg_monitor" in verdict.notes[0]
    stage.expect(VerdictKey.CONSUMER_DOWN)
    assert stage.sampler is not None
    stage.sampler.close()
    stage.admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def test_nobody_consumes(stage: Stage) -> None:
    verdict = stage.expect(VerdictKey.CONSUMER_DOWN, stage.insert)
    assert stage.names.slot in verdict.cause


def test_somebody_else_consumes(stage: Stage) -> None:
    with stage.consumer(application="pg_recvlogical"):
        verdict = stage.expect(VerdictKey.SLOT_TAKEN, stage.insert)
    assert "pg_recvlogical" in verdict.cause


# --- the slot and its end ----------------------------------------------------------------------


def test_cap_passed_then_saved_then_lost(stage: Stage) -> None:
    """The window between passing the cap and the next checkpoint, how to get out of it, and its end."""
    stage.set(max_slot_wal_keep_size="4MB")
    stage.burn(60)
    verdict = stage.expect(VerdictKey.RESCUE_WINDOW)
    assert "pg_reload_conf" in verdict.next_step
    stage.set(max_slot_wal_keep_size="2GB")
    stage.expect(VerdictKey.CONSUMER_DOWN)
    stage.set(max_slot_wal_keep_size="4MB")
    stage.expect(VerdictKey.RESCUE_WINDOW)
    verdict = stage.expect(VerdictKey.SLOT_LOST, stage.checkpoint)
    assert "wal_removed" in verdict.cause
    assert verdict.seconds_left is None
    stage.set(max_slot_wal_keep_size="2GB")
    stage.expect(VerdictKey.SLOT_LOST)  # raising the cap comes too late


def test_lost_without_ever_being_unreserved(stage: Stage) -> None:
    stage.expect(VerdictKey.CONSUMER_DOWN)
    stage.set(max_slot_wal_keep_size="4MB")
    stage.burn(60)
    stage.expect(VerdictKey.SLOT_LOST, stage.checkpoint)


def test_lost_while_in_use(stage: Stage) -> None:
    stage.set(max_slot_wal_keep_size="4MB")
    with stage.consumer(Manner.NEVER_CONFIRMS):
        stage.insert()
        stage.burn(60)
        stage.expect(VerdictKey.SLOT_LOST, stage.checkpoint)


def test_lost_by_idle_timeout(stage: Stage) -> None:
    if stage.major < 18:
        pytest.skip("idle_replication_slot_timeout comes with PostgreSQL 18")
    stage.set(idle_replication_slot_timeout="1h")
    verdict = stage.expect(VerdictKey.CONSUMER_DOWN)
    assert verdict.seconds_left is not None
    assert verdict.seconds_left.end is End.INVALIDATION
    stage.set(idle_replication_slot_timeout="1s")
    verdict = stage.expect(VerdictKey.SLOT_LOST, stage.checkpoint)  # once a second has passed
    assert "idle_timeout" in verdict.cause


def test_slot_dropped(stage: Stage) -> None:
    stage.expect(VerdictKey.CONSUMER_DOWN)
    stage.admin.execute("SELECT pg_drop_replication_slot(%s)", (stage.names.slot,))
    verdict = stage.expect(VerdictKey.SLOT_MISSING)
    assert "a moment ago" in verdict.cause


def test_slot_of_the_same_name_made_anew(stage: Stage) -> None:
    with stage.consumer():
        stage.expect(VerdictKey.HEALTHY, stage.insert)
    stage.admin.execute("SELECT pg_drop_replication_slot(%s)", (stage.names.slot,))
    stage.expect(VerdictKey.SLOT_MISSING)
    stage.slot()
    with stage.consumer():
        verdict = stage.expect(VerdictKey.HEALTHY, stage.insert)
    assert any("slot appeared" in note or "made anew" in note for note in verdict.notes)


def test_no_cap(stage: Stage) -> None:
    stage.set(max_slot_wal_keep_size="-1")
    with stage.consumer():
        stage.expect(VerdictKey.WAL_UNBOUNDED, stage.insert)


def test_few_slots_left(stage: Stage) -> None:
    for number in range(8):
        stage.slot(f"{stage.names.slot}_{number}", "test_decoding" if number % 2 else "pgoutput")
    with stage.consumer():
        verdict = stage.expect(VerdictKey.SLOTS_NEARLY_FULL, stage.insert)
    assert "9 of 10" in verdict.cause


# --- what feeds the slot -----------------------------------------------------------------------


def test_publication_dropped(stage: Stage) -> None:
    with stage.consumer():
        stage.expect(VerdictKey.HEALTHY, stage.insert)
        stage.admin.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(stage.names.publication)))
        stage.expect(VerdictKey.PUBLICATION_MISSING, stage.insert)


def test_table_taken_out_of_the_publication(stage: Stage) -> None:
    name = sql.Identifier(stage.names.publication)
    with stage.consumer():
        stage.admin.execute(sql.SQL("ALTER PUBLICATION {} DROP TABLE outbox").format(name))
        stage.expect(VerdictKey.TABLE_NOT_PUBLISHED, stage.insert)
        stage.admin.execute(sql.SQL("ALTER PUBLICATION {} ADD TABLE outbox").format(name))
        stage.expect(VerdictKey.HEALTHY, stage.insert)
        stage.admin.execute(sql.SQL("ALTER PUBLICATION {} SET (publish = 'update')").format(name))
        verdict = stage.expect(VerdictKey.TABLE_NOT_PUBLISHED, stage.insert)
    assert "inserts" in verdict.cause


def test_table_renamed(stage: Stage) -> None:
    with stage.consumer():
        stage.execute("ALTER TABLE outbox RENAME TO outbox_old")
        stage.expect(VerdictKey.TABLE_MISSING)


# --- the consumer ------------------------------------------------------------------------------


def test_sink_down(stage: Stage) -> None:
    with stage.consumer(Manner.NEVER_CONFIRMS):
        stage.expect(VerdictKey.SINK_NOT_ACKING, stage.insert)


def test_consumer_frozen(stage: Stage) -> None:
    stage.set(wal_sender_timeout="0")  # or the server ends the session, on a slow machine unseen
    with stage.consumer() as client:
        stage.expect(VerdictKey.HEALTHY, stage.insert)
        client.manner = Manner.FROZEN
        verdict = stage.expect(VerdictKey.CONSUMER_FROZEN, stage.insert, steady=0)
    assert "has not answered" in verdict.cause


def test_wal_from_another_database(stage: Stage, new_database: Callable[[Stack], Database]) -> None:
    """Nothing is sent at all, on any version: no lag, no transaction counted."""
    with new_database(stage.server).connect() as elsewhere, stage.consumer(Manner.CONFIRMS_COMMITS):
        stage.expect(VerdictKey.HEALTHY, stage.insert)
        stage.expect(VerdictKey.HEARTBEAT_MISSING, lambda: stage.burn(1, elsewhere))
        stage.expect(VerdictKey.HEALTHY, stage.insert)  # the next event frees it


def test_wal_from_other_tables(stage: Stage) -> None:
    """Up to PostgreSQL 14 the consumer gets an empty transaction and goes on; from 15 it gets nothing."""

    def write() -> None:
        stage.execute(  # what does not compress
            "INSERT INTO other SELECT string_agg(md5(random()::text), '')"
            " FROM generate_series(1, 30000) n GROUP BY n % 300"
        )

    with stage.consumer(Manner.CONFIRMS_COMMITS):
        stage.expect(VerdictKey.HEALTHY, stage.insert)
        if stage.major >= 15:
            stage.expect(VerdictKey.HEARTBEAT_MISSING, write)
        else:
            stage.expect(VerdictKey.HEALTHY, write, steady=15)


def test_backlog_that_shrinks(stage: Stage) -> None:
    stage.thresholds = replace(stage.thresholds, quiet_bytes=256 * 1024, stuck=1000.0)
    with stage.consumer(Manner.NEVER_CONFIRMS) as client:
        stage.expect(VerdictKey.HEALTHY, stage.insert, steady=1)
        stage.insert(20_000)
        verdict = stage.expect(VerdictKey.CATCHING_UP, steady=0)
        client.manner = Manner.CONFIRMS
        stage.insert()
        stage.expect(VerdictKey.HEALTHY, stage.insert)
    assert "backlog" in verdict.cause


def test_a_nightly_batch_is_no_alarm(stage: Stage) -> None:
    """With the product's own thresholds: a large transaction is at most a backlog."""
    stage.thresholds = Thresholds()
    said = set()
    with stage.consumer(Manner.CONFIRMS_COMMITS):
        for rows in (10, 30_000, 10, 10):
            stage.insert(rows)
            for _ in range(4):
                _, verdict = stage.look()
                said.add(verdict.key)
                time.sleep(0.2)
        stage.expect(VerdictKey.HEALTHY, stage.insert)
    assert said <= {VerdictKey.HEALTHY, VerdictKey.CATCHING_UP}


def test_decoding_in_a_loop(stage: Stage) -> None:
    """The session ends before the large transaction is through, and the next one begins again."""
    stage.insert(5_000)

    def session() -> None:
        with stage.database.connect() as conn:
            conn.execute(
                "SELECT count(*) FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL,"
                " 'proto_version', '1', 'publication_names', %s)",
                (stage.names.slot, stage.names.publication),
            )

    verdict = stage.expect(VerdictKey.DECODE_LOOP, session)
    assert "again and again" in verdict.cause
