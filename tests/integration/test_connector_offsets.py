"""`outboxctl connectors offsets` and the restart guard: what they say is what then happens, by ids."""

from __future__ import annotations

from uuid import UUID

import psycopg
import pytest
import requests

from fix_connector import NewPipeline, Pipeline
from loss_lab import delivered
from outbox_pipeline.connect import restart_guard
from outbox_pipeline.servers import lsn

pytestmark = pytest.mark.stack


def stopped_with_rows(pipeline: Pipeline) -> tuple[int, list[UUID], list[int]]:
    """Deliver three events, stop, and write five more. Returns the position after the three, the five
    and the position after each of them."""
    pipeline.register()
    last = [pipeline.add() for _ in range(3)][-1]
    assert delivered(pipeline, last) == pipeline.written
    pipeline.client.stop(pipeline.connector)  # which stores the offset of what was delivered
    offset = pipeline.client.offsets(pipeline.connector)
    assert offset is not None
    rows, ends = [], []
    for _ in range(5):
        rows.append(pipeline.add())
        end = pipeline.conn.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert end is not None
        ends.append(lsn.parse(end[0]))
    assert offset.lsn is not None
    return offset.lsn, rows, ends


def go_on(pipeline: Pipeline) -> list[UUID]:
    """Resume, write one event more, and read all that has arrived."""
    ran = pipeline.outboxctl("resume", "--wait", "0")
    assert ran.code == 0, ran.text
    return delivered(pipeline, pipeline.add())


def patch(pipeline: Pipeline, **offset: object) -> None:
    """Store any offset in a STOPPED connector, as no command of ours would."""
    partition = {"server": pipeline.definition.topic_prefix}
    url = f"{pipeline.definition.connect.url}/connectors/{pipeline.connector}/offsets"
    body = {"offsets": [{"partition": partition, "offset": offset}]}
    requests.patch(url, json=body, timeout=30).raise_for_status()


def test_a_position_that_skips_rows_is_refused_with_their_number(pipeline: Pipeline) -> None:
    _, rows, ends = stopped_with_rows(pipeline)
    wanted = lsn.text(ends[1])
    refused = pipeline.outboxctl("offsets", "set", wanted, "--yes")
    assert refused.code == 7, refused.text
    assert "2 rows would never be delivered" in refused.err
    dry = pipeline.outboxctl("offsets", "set", wanted, "--accept-loss", "--dry-run", "--json")
    assert (dry.document["skipped"], dry.document["repeated"]) == (2, 0)
    done = pipeline.outboxctl("offsets", "set", wanted, "--accept-loss", "--yes")
    assert done.code == 0, done.text
    assert f"stored offset is {wanted}" in done.out
    found = go_on(pipeline)
    assert set(rows) - set(found) == set(rows[:2])


def test_a_position_on_a_row_skips_that_row_too(pipeline: Pipeline) -> None:
    """Debezium takes the row at the stored position as delivered, and so does the count."""
    stopped_with_rows(pipeline)
    with pipeline.conn.transaction():
        rows = [pipeline.add(pipeline.conn) for _ in range(3)]
    peeked = pipeline.conn.execute(
        "SELECT lsn::text FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
        " 'publication_names', %s) WHERE chr(get_byte(data, 0)) = 'I'",
        (pipeline.definition.postgres.slot, pipeline.definition.postgres.publication),
    ).fetchall()
    second = peeked[-2][0]
    refused = pipeline.outboxctl("offsets", "set", second, "--yes")
    assert "7 rows would never be delivered" in refused.err, refused.text  # 5 before it, 2 of it
    assert pipeline.outboxctl("offsets", "set", second, "--accept-loss", "--yes").code == 0
    found = go_on(pipeline)
    assert set(pipeline.written) - set(found) == set(pipeline.written[3:8]) | set(rows[:2])


def test_a_position_that_skips_nothing_needs_no_permission(pipeline: Pipeline) -> None:
    before, rows, _ = stopped_with_rows(pipeline)
    done = pipeline.outboxctl("offsets", "set", lsn.text(before - 1), "--yes", "--json")
    assert done.code == 0, done.text
    assert done.document["skipped"] == 0
    assert set(pipeline.written) <= set(go_on(pipeline))
    assert len(rows) == 5


def test_resetting_loses_nothing_while_the_slot_is_there(pipeline: Pipeline) -> None:
    stopped_with_rows(pipeline)
    done = pipeline.outboxctl("offsets", "reset", "--yes")
    assert done.code == 0, done.text
    shown = pipeline.outboxctl("offsets", "show", "--json")
    assert (shown.code, shown.document["offset"]) == (0, None)
    assert set(go_on(pipeline)) == set(pipeline.written)


def test_offsets_of_a_running_connector_are_shown_and_not_changed(pipeline: Pipeline) -> None:
    pipeline.register()
    pipeline.add()
    offset = pipeline.wait_until_stored()
    shown = pipeline.outboxctl("offsets", "show")
    assert shown.code == 0, shown.text
    assert offset.resume_at is not None
    assert lsn.text(offset.resume_at) in shown.out
    assert "confirmed_flush" in shown.out
    assert "ok: resumes at" in shown.out
    for change in (["set", "0/1"], ["reset"]):
        refused = pipeline.outboxctl("offsets", *change, "--yes")
        assert refused.code == 7, refused.text
        assert "only while the connector is STOPPED; it is RUNNING" in refused.err


def test_every_danger_of_a_start_is_named_and_refused(pipeline: Pipeline) -> None:
    """Beyond the log; older than the slot; no slot: each of these starts would skip rows or fail."""
    stopped_with_rows(pipeline)
    end = pipeline.conn.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    assert end is not None
    beyond = lsn.parse(end[0]) + 2**30
    patch(pipeline, lsn=beyond, lsn_proc=beyond, lsn_commit=beyond)
    refuses(pipeline, "offset_ahead_of_slot", "beyond the end of the log")
    patch(pipeline, lsn=8, lsn_proc=8, lsn_commit=8)
    refuses(pipeline, "offset_behind_slot", "the stored offset is older")
    patch(pipeline, lsn="nonsense")
    refuses(pipeline, "offset_unreadable", "no position that is a number")
    pipeline.conn.execute("SELECT pg_drop_replication_slot(%s)", (pipeline.definition.postgres.slot,))
    refuses(pipeline, "slot_missing", "does not exist")
    reset = pipeline.outboxctl("offsets", "reset", "--yes")
    assert reset.code == 7, reset.text
    assert "does not exist" in reset.err


def refuses(pipeline: Pipeline, code: str, text: str) -> None:
    shown = pipeline.outboxctl("offsets", "show", "--json")
    assert shown.code == 5, shown.text
    assert [verdict["code"] for verdict in shown.document["verdicts"]] == [code]
    resumed = pipeline.outboxctl("resume", "--dry-run")
    assert resumed.code == 7, resumed.text
    assert text in resumed.err


def test_a_begin_offset_holds_up_every_restart_and_can_be_mended(pipeline: Pipeline) -> None:
    before, _, _ = stopped_with_rows(pipeline)
    patch(pipeline, lsn=before, lsn_proc=before, lsn_commit=before, messageType="BEGIN")
    refused = pipeline.outboxctl("resume")
    assert refused.code == 7, refused.text
    assert "the stored offset is the BEGIN of an undelivered transaction" in refused.err
    assert f"offsets set {lsn.text(before - 1)}" in refused.err
    pipeline.client.resume(pipeline.connector)
    pipeline.wait_until_running()
    behind = pipeline.wait_until_stored(before)  # it moves on by itself
    assert behind.message_type == "INSERT"
    assert pipeline.outboxctl("stop").code == 0


def test_open_transactions_that_wrote_the_outbox_are_found(new_pipeline: NewPipeline) -> None:
    pipeline, other = new_pipeline(), new_pipeline()
    publication = pipeline.definition.postgres.publication
    with psycopg.connect(pipeline.conninfo, application_name="slow writer") as writer:
        with pipeline.conn.transaction():
            pipeline.conn.execute("SELECT count(*) FROM outbox")
            assert restart_guard.open_transactions(pipeline.conn, publication) == ()
        pipeline.add(writer)
        (found,) = restart_guard.open_transactions(pipeline.conn, publication)
        assert found.pid == writer.info.backend_pid
        assert found.application == "slow writer"
        assert found.user == "postgres"
        assert 0 <= found.age_seconds < 60
        assert f"pid {found.pid} (user postgres, application slow writer, open for" in str(found)
        assert restart_guard.open_transactions(other.conn, other.definition.postgres.publication) == ()
        writer.rollback()
        assert restart_guard.open_transactions(pipeline.conn, publication) == ()
