"""A command that could not go through to its end changes nothing, and its dry run says so."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from fix_provision import PASSWORD, Pipeline
from outbox_connectors.errors import ExitCode
from outbox_pipeline.errors import Refused
from outbox_pipeline.provision import preflight
from outbox_pipeline.relay import schema
from waiting import until

pytestmark = [pytest.mark.stack, pytest.mark.slow]

SLOT = "SELECT slot_name FROM pg_replication_slots WHERE slot_name = {slot}"


@pytest.fixture
def pipeline(own_pipeline: Pipeline) -> Pipeline:
    """A pipeline that delivers, with an event."""
    applied = own_pipeline.run("apply", "--no-wait")
    assert applied.code == 0, applied.err
    assert own_pipeline.run("send", "order", "1", "Placed", "{}").code == 0
    return own_pipeline


def break_slot(pipeline: Pipeline) -> None:
    """Drop the slot of a connector that has an offset, as a hasty operator does."""
    name = pipeline.site.definition.connect.connector
    with pipeline.client() as client:
        until(lambda: client.offsets(name) is not None, "an offset is stored")
        client.stop(name)
        idle = "SELECT 1 FROM pg_replication_slots WHERE slot_name = {slot} AND NOT active"
        until(lambda: pipeline.sql(idle), "the task lets go of its slot")
    pipeline.sql("SELECT pg_drop_replication_slot({slot})")


def test_recover_forgets_no_offset_on_a_table_that_it_could_not_use(pipeline: Pipeline) -> None:
    break_slot(pipeline)
    pipeline.sql("ALTER TABLE outbox ALTER COLUMN aggregate_id DROP NOT NULL")
    pipeline.sql("ALTER TABLE outbox ALTER COLUMN traceparent TYPE varchar(9)")
    assert "blocked" in pipeline.plan().values(), pipeline.plan()
    name = pipeline.site.definition.connect.connector
    with pipeline.client() as client:
        before = client.offsets(name)
        for command in (("recover", "--dry-run"), ("recover",)):
            done = pipeline.run(*command)
            assert done.code == ExitCode.REFUSED, done.err
            assert "table public.outbox" in done.err
            assert client.offsets(name) == before
    assert pipeline.sql(SLOT) == []
    pipeline.sql("ALTER TABLE outbox ALTER COLUMN traceparent TYPE text")
    pipeline.sql("ALTER TABLE outbox ALTER COLUMN aggregate_id SET NOT NULL")
    done = pipeline.run("recover")
    assert done.code == ExitCode.OK, done.err


def test_a_switch_to_the_connector_leaves_all_with_the_relay_where_the_table_is_blocked(
    pipeline: Pipeline,
) -> None:
    with pipeline.site.admin() as conn:
        schema.init(conn, pipeline.site.definition, schema.SetUpOptions(2, archive=True), say=print)
    assert pipeline.run("switch", "--to", "relay").code == 0
    pipeline.sql("ALTER TABLE outbox ALTER COLUMN traceparent TYPE varchar(9)")
    for command in (("switch", "--to", "cdc", "--dry-run"), ("switch", "--to", "cdc")):
        done = pipeline.run(*command)
        assert done.code == ExitCode.REFUSED, done.err
        assert "table public.outbox" in done.err
    assert pipeline.sql(SLOT) == []
    assert pipeline.sql("SELECT road FROM outbox_road") == [("relay",)]


def test_rights_that_are_missing_are_named_before_anything_is_done(pipeline: Pipeline) -> None:
    admin = pipeline.site.writer
    with pipeline.site.connect(admin) as conn:
        table = {"outbox": ("SELECT", "INSERT", preflight.LOCK), "outbox_replay": ("INSERT",)}
        with pytest.raises(
            Refused, match=r"lacks UPDATE or DELETE or TRUNCATE on public.outbox|CREATE on schema"
        ):
            preflight.table_rights(conn, "public", table)
        with pytest.raises(Refused, match="may not create, move or drop replication slots"):
            preflight.slot_rights(conn, pipeline.site.definition)
    with pipeline.site.admin() as conn:
        preflight.table_rights(conn, "public", table)
        preflight.slot_rights(conn, pipeline.site.definition)


def test_room_and_topics(pipeline: Pipeline) -> None:
    with pipeline.site.admin() as conn:
        until(lambda: _records(pipeline, conn) > 0, "a record is there")
        preflight.room_for_ids(conn, pipeline.site.definition)
        with pytest.raises(Refused, match=r"may take .* bytes, and 15 are free"):
            preflight.room_for_ids(conn, pipeline.site.definition, free_bytes=15)
        assert preflight.aggregate_types(conn, sql.Identifier("public", "outbox")) == {"order"}
    preflight.event_topics(pipeline.site.definition, ["order"])
    with pytest.raises(Refused, match=r"new does not exist.*kafka-topics.sh --create --topic \S+new "):
        preflight.event_topics(pipeline.site.definition, ["order", "new"])


def _records(pipeline: Pipeline, conn: psycopg.Connection) -> int:
    try:
        preflight.room_for_ids(conn, pipeline.site.definition, free_bytes=8192 // 100 * 16 + 15)
    except Refused:
        return 1
    return 0


def test_destroy_removes_nothing_that_it_could_not_finish(pipeline: Pipeline) -> None:
    """A role that owns the connector's objects but not the slot takes nothing away."""
    site = pipeline.site
    with site.database.connect() as conn:
        conn.execute(
            sql.SQL("ALTER ROLE {} CREATEROLE PASSWORD {}").format(sql.Identifier(site.writer), PASSWORD)
        )
    conninfo = psycopg.conninfo.make_conninfo(site.database.conninfo, user=site.writer, password=PASSWORD)
    limited = pipeline.changed(postgres={"admin": conninfo})
    for command in (("destroy", "--yes", "--dry-run"), ("destroy", "--yes")):
        done = limited.run(*command)
        assert done.code == ExitCode.REFUSED, done.err
    with pipeline.client() as client:
        assert client.config(site.definition.connect.connector) is not None
    assert pipeline.sql(SLOT) != []


def test_apply_leaves_a_connector_alone_that_works_and_is_not_ours(pipeline: Pipeline) -> None:
    name = pipeline.site.definition.connect.connector
    with pipeline.client() as client:
        theirs = {**(client.config(name) or {}), "extended.headers.enabled": "true"}
        client.put_config(name, theirs)

        def running() -> bool:
            status = client.status(name)
            return status is not None and [task.state for task in status.tasks] == ["RUNNING"]

        until(running, "it runs")
        for command in (("apply", "--dry-run"), ("apply", "--no-wait")):
            done = pipeline.run(*command)
            assert done.code == ExitCode.REFUSED, done.err
            assert "works, and was not made from this definition: extended.headers.enabled" in done.err
        assert client.config(name) == theirs
