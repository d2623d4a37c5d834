"""The PostgreSQL side on every supported major: what is made, that it suffices, that nothing differs."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from fix_provision import PASSWORD, NewSite, Site
from fix_stack import Stack
from outbox_connectors import record
from outbox_pipeline import provision
from outbox_pipeline.provision import publications, tables
from outbox_pipeline.servers import slots
from outbox_pipeline.servers.plan import State, text_of

pytestmark = [pytest.mark.stack, pytest.mark.matrix]

ROW: dict[str, Any] = {
    "id": None,
    "aggregate_type": "order",
    "aggregate_id": "42",
    "event_type": "OrderPlaced",
    "event_version": 1,
    "payload": '{"total": 1}',
    "occurred_at": "2026-11-29 12:00:00+00",
    "traceparent": None,
    "correlation_id": None,
    "causation_id": None,
    "headers": None,
}


def insert(conn: psycopg.Connection[Any], **changed: Any) -> None:
    row = {**ROW, "id": uuid4(), **changed}
    names = sql.SQL(", ").join(map(sql.Identifier, row))
    values = sql.SQL(", ").join(map(sql.Placeholder, row))
    conn.execute(sql.SQL("INSERT INTO outbox ({}) VALUES ({})").format(names, values), row)


def states(site: Site) -> dict[str, str]:
    """How every object of the PostgreSQL side stands."""
    with site.admin() as conn:
        found = [part.look() for part in provision.postgres_parts(conn, site.definition)]
    return {f"{planned.kind} {planned.name}": planned.state.value for planned in found}


def peeked(site: Site) -> int:
    """Count the messages the slot would hand to the connector."""
    with site.admin() as conn:
        row = conn.execute(
            "SELECT count(*) FROM pg_logical_slot_peek_binary_changes("
            "%s, NULL, NULL, 'proto_version', '1', 'publication_names', %s)",
            (site.definition.postgres.slot, site.definition.postgres.publication),
        ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.fixture
def applied(site: Site) -> Site:
    with site.admin() as conn:
        provision.apply_postgres(conn, site.definition)
    return site


def test_everything_is_made_in_order_and_nothing_differs_after(site: Site) -> None:
    with site.admin() as conn:
        done = provision.apply_postgres(conn, site.definition)
        again = provision.apply_postgres(conn, site.definition)
    assert [found.kind for found in done.objects] == [
        "server", "role", "table", "grants", "grants", "function", "publication", "slot",
    ]  # fmt: skip
    states_made = [found.state for found in done.objects[1:] if found.kind != "function"]
    assert states_made == [State.MISSING] * 6
    assert {found.state for found in again.objects} == {State.PRESENT}
    assert set(states(site).values()) == {"present"}


def test_the_connector_may_log_in_replicate_and_read_and_no_more(applied: Site) -> None:
    login = applied.definition.postgres.connector
    with applied.connect(login.user) as conn:  # over TCP, with the password: the verifier is right
        assert conn.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            insert(conn)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("CREATE ROLE somebody")
        slot = slots.read(conn, applied.definition.postgres.slot)
        assert slot is not None
        assert (slot.plugin, slot.database) == ("pgoutput", applied.database.name)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        applied.connect(login.user, "wrong")


def test_no_password_reaches_the_server_log(applied: Site) -> None:
    log = applied.database.server.log("postgres").read_text("utf-8", "replace")
    assert PASSWORD not in log


def test_a_writer_may_insert_and_no_more(applied: Site) -> None:
    with applied.connect(applied.writer) as conn:
        insert(conn)
        for refused in ("SELECT * FROM outbox", "UPDATE outbox SET event_version = 2", "DELETE FROM outbox"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(refused)


def test_a_committed_row_comes_out_of_the_slot(applied: Site) -> None:
    before = peeked(applied)
    with applied.connect(applied.writer) as conn:
        insert(conn)
    assert peeked(applied) >= before + 4  # begin, relation, insert, commit


def test_updates_and_deletes_do_not_come_out_of_the_slot(applied: Site) -> None:
    with applied.connect(applied.writer) as conn:
        insert(conn)
    before = peeked(applied)
    with applied.admin() as conn:
        conn.execute("DELETE FROM outbox")
    # PostgreSQL 14 sends the empty transaction.
    assert peeked(applied) <= before + 2


def test_rows_of_one_copy_have_positions_of_their_own(applied: Site) -> None:
    """Without the trigger all rows of a page share one LSN, and a restart loses them (Debezium dbz#1554)."""
    name = f"{applied.definition.pipeline}_copy"
    with applied.admin() as conn:
        conn.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", (name,))
        with (
            conn.cursor() as cursor,
            cursor.copy(
                "COPY outbox (id, aggregate_type, aggregate_id, event_type, event_version, occurred_at) "
                "FROM STDIN"
            ) as copy,
        ):
            for _ in range(5):
                copy.write_row((uuid4(), "order", "1", "Copied", 1, "2026-11-29 12:00:00+00"))
        row = conn.execute(
            "SELECT count(DISTINCT lsn::text), count(*) FROM pg_logical_slot_peek_changes(%s, NULL, NULL) "
            "WHERE data LIKE 'table%%'",
            (name,),
        ).fetchone()
        conn.execute("SELECT pg_drop_replication_slot(%s)", (name,))
    assert row == (5, 5)


def test_bytea_payloads(server: Stack, new_site: NewSite) -> None:
    site = new_site(server, outbox={"payload": "bytea"})
    with site.admin() as conn:
        provision.apply_postgres(conn, site.definition)
        insert(conn, payload=b"\x00" * record.MAX_PAYLOAD_BYTES)
        with pytest.raises(psycopg.errors.CheckViolation):
            insert(conn, payload=b"\x00" * (record.MAX_PAYLOAD_BYTES + 1))
    assert set(states(site).values()) == {"present"}


def test_daily_partitions(server: Stack, new_site: NewSite) -> None:
    site = new_site(server, outbox={"partition": "daily"})
    with site.admin() as conn:
        provision.apply_postgres(conn, site.definition)
        for moment in ("2001-02-03 00:00:00+00", "2026-11-29 12:00:00+00", "infinity"):
            insert(conn, occurred_at=moment)
        publication = publications.read(conn, site.definition.postgres.publication)
        live = tables.read(conn, site.definition.outbox.table)
    assert publication is not None
    assert publication.via_root
    assert live is not None
    assert len(live.partitions) == tables.DAYS_AHEAD + 2
    assert set(states(site).values()) == {"present"}
    assert peeked(site) >= 3


def test_daily_partitions_are_added_as_time_goes_by(server: Stack, new_site: NewSite) -> None:
    site = new_site(server, outbox={"partition": "daily"})
    with site.admin() as conn:
        for statement in tables.ddl(site.definition.outbox, date(2020, 1, 1)):
            conn.execute(statement)
        before = states(site)
        provision.apply_postgres(conn, site.definition)
    assert before["table public.outbox"] == "different"
    assert set(states(site).values()) == {"present"}


def test_a_day_that_went_to_the_default_partition_does_not_stop_the_others(
    postgres: Stack, new_site: NewSite
) -> None:
    site = new_site(postgres, outbox={"partition": "daily"})
    with site.admin() as conn:
        for statement in tables.ddl(site.definition.outbox, date(2020, 1, 1)):
            conn.execute(statement)
        insert(conn, occurred_at=datetime.now(UTC))
        insert(conn, occurred_at="infinity")
        done = provision.apply_postgres(conn, site.definition)
        live = tables.read(conn, site.definition.outbox.table)
    [table] = [found for found in done.objects if found.kind == "table"]
    assert "gets no partition of its own" in table.warnings[0]
    assert live is not None
    assert len(live.partitions) == 2 * tables.DAYS_AHEAD + 2
    assert set(states(site).values()) == {"present"}


def test_a_schema_of_its_own_is_made(server: Stack, new_site: NewSite) -> None:
    site = new_site(server, outbox={"table": "events.Outbox"})
    with site.admin() as conn:
        provision.apply_postgres(conn, site.definition)
    assert set(states(site).values()) == {"present"}
    with site.connect(site.writer) as conn, pytest.raises(psycopg.errors.NotNullViolation):
        conn.execute('INSERT INTO events."Outbox" DEFAULT VALUES')


def test_the_script_for_a_dba_does_the_same(site: Site) -> None:
    """`plan --sql` on an empty system, run by hand, leaves only what a person must do: the password."""
    with site.admin() as conn:
        script = "\n".join(
            text_of(planned.sql)
            for planned in (part.look() for part in provision.postgres_parts(conn, site.definition))
        )
    assert PASSWORD not in script
    with site.admin() as conn:
        for statement in re.split(r";\n(?=--)|;\n*$", script):
            if statement.strip():
                conn.execute(statement.encode())
    assert set(states(site).values()) == {"present"}
