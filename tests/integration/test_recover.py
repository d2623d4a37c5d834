"""`outboxctl recover`: whatever became of the slot, the gap is found by id and closed, in order."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import psycopg
import pytest

from fix_provision import Pipeline
from fix_relay import Relayed
from outbox_connectors.errors import ExitCode
from outbox_pipeline import outbox
from outbox_pipeline.operations import audit, recover
from outbox_pipeline.operations.audit import AuditReport
from outbox_pipeline.servers.topic_reader import arrival
from waiting import PATIENCE_SECONDS, until

pytestmark = [pytest.mark.stack, pytest.mark.slow]


@pytest.fixture
def pipeline(own_pipeline: Pipeline) -> Pipeline:
    """A pipeline that delivers."""
    applied = own_pipeline.run("apply", "--no-wait")
    assert applied.code == 0, applied.err
    return own_pipeline


class Aggregates:
    """Writes numbered events of a few aggregates."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.number = 0
        self.ids: set[str] = set()

    def write(self, count: int) -> None:
        with psycopg.connect(self.pipeline.site.database.conninfo) as conn:
            for _ in range(count):
                self.number += 1
                made = outbox.add(
                    conn,
                    aggregate_type="order",
                    aggregate_id=f"k{self.number % 3}",
                    event_type="Counted",
                    payload={"n": self.number},
                )
                self.ids.add(str(made))


def books(pipeline: Pipeline) -> AuditReport:
    with pipeline.site.admin() as conn:
        return audit.audit(conn, pipeline.site.definition, settle_seconds=PATIENCE_SECONDS)


def stop(pipeline: Pipeline) -> None:
    name = pipeline.site.definition.connect.connector
    with pipeline.client() as client:
        client.stop(name)
        until(lambda: (status := client.status(name)) is not None and status.stopped, "it is stopped")
    until(lambda: not slot(pipeline)[0][0], "nobody reads the slot")


def slot(pipeline: Pipeline) -> list[tuple[bool, str]]:
    found: list[tuple[bool, str]] = pipeline.sql(
        "SELECT active, wal_status FROM pg_replication_slots WHERE slot_name = {slot}"
    )
    return found


def check(pipeline: Pipeline, written: Aggregates) -> None:
    """Every event is in the topic, once, and in the order of its aggregate."""
    path = pipeline.folder / "none.yaml"
    order: dict[str, list[int]] = defaultdict(list)
    ids = []
    for message in Relayed(pipeline.site, path).read():
        arrived = arrival(message)
        if arrived.header("event_type") == "Counted":
            ids.append(arrived.header("id"))
            value = (arrived.value or b"").decode()
            order[str(arrived.key)].append(int(value.partition(":")[2].strip(" }")))
    assert sorted(map(str, ids)) == sorted(written.ids)
    assert all(a < b for found in order.values() for a, b in pairwise(found))


def test_a_slot_that_was_dropped(pipeline: Pipeline) -> None:
    written = Aggregates(pipeline)
    written.write(10)
    assert books(pipeline).missing == 0
    stop(pipeline)
    written.write(10)
    pipeline.sql("SELECT pg_drop_replication_slot({slot})")
    written.write(10)
    plan = pipeline.run("--json", "recover", "--dry-run").document()
    assert (plan["code"], plan["broken"]) == ("slot_missing", True)
    assert slot(pipeline) == []
    done = pipeline.run("--json", "recover")
    assert done.code == ExitCode.OK, done.err
    found = done.document()
    assert found["published"] == 20
    assert (found["audit"]["written"], found["audit"]["missing"], found["audit"]["duplicated"]) == (30, [], 0)
    written.write(5)
    assert books(pipeline).missing == 0
    check(pipeline, written)
    again = pipeline.run("--json", "recover", "--dry-run").document()
    assert (again["code"], again["broken"]) == ("resumes", False)
    assert pipeline.run("plan").code == 0

    with pipeline.site.database.connect() as conn:
        conn.execute("UPDATE outbox SET occurred_at = occurred_at - interval '8 days' WHERE position <= 30")
    pruned = pipeline.run("--json", "prune")
    assert pruned.code == ExitCode.OK, pruned.err
    assert pruned.document()["rows"] == 30


def test_a_slot_that_lost_its_log(pipeline: Pipeline) -> None:
    """Lost by max_slot_wal_keep_size, in the way a checkpoint does it; interrupted once on the way."""
    written = Aggregates(pipeline)
    written.write(10)
    assert books(pipeline).missing == 0
    stop(pipeline)
    written.write(10)
    lose_the_log(pipeline)
    written.write(10)
    with pipeline.site.admin() as conn, pipeline.client() as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(recover, "_close_gap", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            recover.recover(conn, client, pipeline.site.definition, say=print)
    written.write(10)
    with pipeline.site.admin() as conn, pipeline.client() as client:
        done = recover.recover(conn, client, pipeline.site.definition, say=print)
    assert done.report.missing == 0
    assert done.report.written == 40
    check(pipeline, written)


def _interrupted(*_: object) -> int:
    raise KeyboardInterrupt


def lose_the_log(pipeline: Pipeline) -> None:
    """Write log until the slot is lost. The limit holds for this moment only: others use the server too."""
    with pipeline.site.database.connect() as conn:
        name = pipeline.site.definition.postgres.slot
        conn.execute("CREATE TABLE ballast (text text)")

        def lost() -> bool:
            conn.execute(
                "INSERT INTO ballast SELECT repeat(md5(i::text), 60) FROM generate_series(1, 20000) AS i"
            )
            conn.execute("SELECT pg_switch_wal()")
            conn.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
            conn.execute("SELECT pg_reload_conf()")
            try:
                until(lambda: conn.execute("SHOW max_slot_wal_keep_size").fetchone() == ("1MB",))
                conn.execute("CHECKPOINT")
            finally:
                conn.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
                conn.execute("SELECT pg_reload_conf()")
            row = conn.execute(
                "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s", (name,)
            ).fetchone()
            return row == ("lost",)

        until(lost, "the slot is lost")


def test_an_offset_beyond_the_end_of_the_log(pipeline: Pipeline) -> None:
    """As after the restore of an older copy, or a failover that lost the end of the log.

    Four events were published and are undone: their records stay, and are told.
    """
    written = Aggregates(pipeline)
    written.write(10)
    assert books(pipeline).missing == 0
    stop(pipeline)
    with pipeline.site.database.connect() as conn:
        conn.execute("DELETE FROM outbox WHERE position <= 4")
    written.write(10)
    with pipeline.client() as client:
        client.set_offset(pipeline.site.definition.connect.connector, 2**60)
    assert pipeline.run("connectors", "resume").code == ExitCode.REFUSED
    done = pipeline.run("recover")
    assert done.code == ExitCode.OK, done.err
    assert "10 events published; written 16  delivered 20  missing 0" in done.out
    assert "unexpected 4" in done.out
    assert "beyond the end of the log" in done.err
    check(pipeline, written)
