"""What PostgreSQL of each major says about slots, held transactions and open ones. No connector runs."""

from __future__ import annotations

import psycopg
import pytest

from fix_provision import Site
from outbox_pipeline import outbox, provision
from outbox_pipeline.connect import offsets, restart_guard

pytestmark = [pytest.mark.stack, pytest.mark.matrix]


def write(conn: psycopg.Connection, rows: int) -> None:
    with conn.transaction():
        for n in range(rows):
            outbox.add(conn, aggregate_type="order", aggregate_id="1", event_type="E", payload={"n": n})


def test_what_a_slot_holds_is_counted_and_not_consumed(site: Site) -> None:
    with site.admin() as conn:
        provision.apply_postgres(conn, site.definition)
        slot, publication = site.definition.postgres.slot, site.definition.postgres.publication
        config = {
            "slot.name": slot,
            "plugin.name": "pgoutput",
            "snapshot.mode": "no_data",
            "database.dbname": site.database.name,
        }
        write(conn, 3)
        middle = offsets.read(conn, config, None).log_end
        write(conn, 2)
        positions = offsets.read(conn, config, None)
        assert [verdict.code for verdict in offsets.verdicts(positions)] == ["resumes"]
        assert positions.confirmed is not None
        for _ in range(2):
            held = offsets.peek(conn, slot, publication, middle)
            assert [transaction.rows for transaction in held] == [3, 2]
        assert offsets.effect(held, middle, positions.confirmed, None) == offsets.ResumeEffect(3, 0)
        assert offsets.effect(held, positions.confirmed, positions.confirmed, None) == offsets.ResumeEffect(
            0, 0
        )
        assert offsets.effect(held, positions.log_end + 1, positions.confirmed, None) == offsets.ResumeEffect(
            5, 0
        )
        assert offsets.read(conn, config, None).confirmed == positions.confirmed


def test_a_writer_is_found_whatever_the_major(site: Site) -> None:
    with site.admin() as conn:
        provision.apply_postgres(conn, site.definition)
        publication = site.definition.postgres.publication
        assert restart_guard.open_transactions(conn, publication) == ()
        with psycopg.connect(site.database.conninfo, application_name="slow writer") as writer:
            write(writer, 1)
            assert restart_guard.open_transactions(conn, publication) == ()  # committed
            writer.execute("SELECT count(*) FROM outbox")
            assert restart_guard.open_transactions(conn, publication) == ()  # only reads
            with writer.transaction():
                outbox.add(writer, aggregate_type="a", aggregate_id="1", event_type="E", payload=None)
            (found,) = restart_guard.open_transactions(conn, publication)
            assert (found.pid, found.application) == (writer.info.backend_pid, "slow writer")
