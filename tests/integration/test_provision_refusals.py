"""What provisioning leaves alone, and what it says then: one line, what to do, nothing changed behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.pq import ExecStatus

from fix_provision import PASSWORD, NewSite, Site, overlaid
from fix_stack import Stack
from outbox_connectors.errors import Failed
from outbox_pipeline import provision
from outbox_pipeline.servers.plan import ObjectPlan, State

pytestmark = pytest.mark.stack


@pytest.fixture
def place(new_site: NewSite, postgres: Stack) -> Site:
    return new_site(postgres)


def with_postgres(site: Site, **changed: Any) -> Site:
    return replace(site, document=overlaid(site.document, {"postgres": changed}))


@contextmanager
def reading(site: Site, conninfo: str) -> Iterator[None]:
    """Stream from the slot, as a connector does, for the duration of a block."""
    command = (
        f"START_REPLICATION SLOT {site.definition.postgres.slot} LOGICAL 0/0 "
        f"(proto_version '1', publication_names '{site.definition.postgres.publication}')"
    )
    with closing(psycopg.connect(conninfo, autocommit=True, replication="database")) as conn:
        assert conn.pgconn.exec_(command.encode()).status == ExecStatus.COPY_BOTH
        yield


def planned(site: Site, kind: str, name: str = "") -> ObjectPlan:
    with site.admin() as conn:
        found = [part.look() for part in provision.postgres_parts(conn, site.definition)]
    return next(one for one in found if one.kind == kind and name in ("", one.name))


def refusal(site: Site) -> Failed:
    with site.admin() as conn, pytest.raises(Failed) as refused:
        provision.apply_postgres(conn, site.definition)
    assert "\n" not in str(refused.value)
    assert refused.value.remedy
    return refused.value


def apply(site: Site) -> None:
    with site.admin() as conn:
        provision.apply_postgres(conn, site.definition)


def run(site: Site, *texts: LiteralString) -> None:
    """Run statements; `{slot}`, `{publication}`, `{user}`, `{writer}` are this site's, quoted."""
    definition = site.definition
    names = {
        "slot": sql.Literal(definition.postgres.slot),
        "publication": sql.Identifier(definition.postgres.publication),
        "user": sql.Identifier(definition.postgres.connector.user),
        "writer": sql.Identifier(site.writer),
        "database": sql.Identifier(site.database.name),
    }
    with site.database.connect() as conn:
        for text in texts:
            conn.execute(sql.SQL(text).format(**names))


# -- the table ---------------------------------------------------------------------------------------


def test_a_table_with_other_columns(place: Site) -> None:
    run(place, "CREATE TABLE outbox (id bigint PRIMARY KEY, body text)")
    error = refusal(place)
    assert error.where == "table public.outbox"
    assert "exists with another shape: column id is bigint, wants uuid" in error.problem
    assert {change.field for change in planned(place, "table").changes} >= {"column id", "column payload"}
    assert planned(place, "publication").state is State.MISSING, "what comes after is not touched"


def test_a_view_in_the_place_of_the_table(place: Site) -> None:
    run(place, "CREATE VIEW outbox AS SELECT 1 AS id")
    assert "kind is view, wants table" in refusal(place).problem


@pytest.mark.parametrize(
    ("change", "field", "remedy"),
    [
        ("ALTER COLUMN payload SET DEFAULT '{{}}'", "column payload", "DROP DEFAULT"),
        ("ALTER COLUMN aggregate_id DROP NOT NULL", "column aggregate_id", "SET NOT NULL"),
        ("ALTER COLUMN payload TYPE bytea USING NULL", "column payload", "TYPE jsonb"),
        ("ADD COLUMN tenant text NOT NULL", "column tenant", "DROP NOT NULL"),
        ("DROP CONSTRAINT payload_fits_a_record", "check payload_fits_a_record", "ADD CONSTRAINT"),
        ("DROP CONSTRAINT outbox_pkey", "primary key", "ADD PRIMARY KEY"),
        ("ALTER COLUMN position DROP IDENTITY", "column position", "ADD GENERATED ALWAYS AS IDENTITY"),
        ("DROP COLUMN event_type", "column event_type", "ADD COLUMN event_type"),
    ],
)
def test_a_drift_that_a_person_must_mend(place: Site, change: LiteralString, field: str, remedy: str) -> None:
    apply(place)
    run(place, "ALTER TABLE outbox " + change)
    found = planned(place, "table")
    assert found.state is State.BLOCKED
    assert found.changes[0].field == field
    assert remedy in found.remedy
    refusal(place)


def test_another_limit_in_a_check_is_a_difference(place: Site) -> None:
    apply(place)
    run(
        place,
        "ALTER TABLE outbox DROP CONSTRAINT event_type_fits_a_header",
        "ALTER TABLE outbox ADD CONSTRAINT event_type_fits_a_header "
        "CHECK (event_type <> '' AND octet_length(event_type) <= 999)",
    )
    found = planned(place, "table")
    assert (found.state, found.changes[0].field) == (State.BLOCKED, "check event_type_fits_a_header")
    assert "999" in found.changes[0].have
    with place.database.connect() as conn:
        conn.execute(found.remedy.encode())
    assert planned(place, "table").state is State.PRESENT, "the remedy mends it"


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TRIGGER keep_copy_rows_apart ON outbox",
        "ALTER TABLE outbox DISABLE TRIGGER keep_copy_rows_apart",
        "ALTER TABLE outbox DROP COLUMN correlation_id",
        "ALTER TABLE outbox RESET (autovacuum_vacuum_scale_factor)",
        "REVOKE INSERT ON outbox FROM {writer}",
        "REVOKE SELECT ON outbox FROM {user}",
        "ALTER ROLE {user} NOREPLICATION",
        "ALTER ROLE {user} NOLOGIN",
        "ALTER ROLE {user} PASSWORD 'another'",
        "ALTER ROLE {user} PASSWORD NULL",
        "DROP PUBLICATION {publication}",
        "ALTER PUBLICATION {publication} SET (publish = 'delete')",
        "ALTER PUBLICATION {publication} DROP TABLE outbox",
        "SELECT pg_drop_replication_slot({slot})",
    ],
)
def test_a_drift_that_apply_mends(place: Site, damage: LiteralString) -> None:
    apply(place)
    run(place, damage)
    with place.admin() as conn:
        before = [part.look() for part in provision.postgres_parts(conn, place.definition)]
        provision.apply_postgres(conn, place.definition)
        after = [part.look() for part in provision.postgres_parts(conn, place.definition)]
    assert [one for one in before if one.state in (State.MISSING, State.DIFFERENT)]
    assert {one.state for one in after} == {State.PRESENT}


def test_an_operator_s_own_autovacuum_settings_stay(place: Site) -> None:
    apply(place)
    run(place, "ALTER TABLE outbox SET (autovacuum_vacuum_scale_factor = 0.5)")
    assert planned(place, "table").state is State.PRESENT


# -- roles -------------------------------------------------------------------------------------------


def test_no_password_to_create_the_role_with(place: Site) -> None:
    site = with_postgres(place, connector={"role_password": ""})
    assert "role_password is empty" in refusal(site).problem


def test_a_writer_that_does_not_exist(new_site: NewSite, postgres: Stack) -> None:
    site = new_site(postgres, outbox={"writers": ["nobody_knows_me"]})
    error = refusal(site)
    assert error.where == "grants nobody_knows_me"
    assert 'CREATE ROLE "nobody_knows_me" LOGIN' in error.remedy


def test_a_superuser_as_connector_is_left_alone_with_a_warning(place: Site) -> None:
    apply(place)
    run(place, "ALTER ROLE {user} SUPERUSER")
    found = planned(place, "role")
    assert found.state is State.PRESENT
    assert "has SUPERUSER, which the connector does not need" in found.warnings[0]


# -- the publication ---------------------------------------------------------------------------------


def test_a_publication_with_other_tables_is_widened_never_narrowed(place: Site) -> None:
    run(
        place,
        "CREATE TABLE customers (id int PRIMARY KEY)",
        "CREATE PUBLICATION {publication} FOR TABLE customers",
    )
    before = planned(place, "publication")
    assert before.changes[0].have == "public.customers"
    apply(place)
    after = planned(place, "publication")
    assert after.state is State.PRESENT
    assert any("publishes more than public.outbox: public.customers" in text for text in after.warnings)
    assert any("only insert is needed" in text for text in after.warnings)


def test_a_publication_for_all_tables_covers_the_outbox(place: Site) -> None:
    run(place, "CREATE PUBLICATION {publication} FOR ALL TABLES")
    apply(place)
    assert "all tables" in planned(place, "publication").warnings[0]


def test_a_publication_with_a_row_filter(place: Site) -> None:
    apply(place)
    run(place, "ALTER PUBLICATION {publication} SET TABLE outbox WHERE (event_version > 1)")
    error = refusal(place)
    assert "passes only some of the outbox on" in error.problem


def test_a_publication_with_a_column_list(place: Site) -> None:
    apply(place)
    run(place, "ALTER PUBLICATION {publication} SET TABLE outbox (id, payload)")
    assert planned(place, "publication").state is State.BLOCKED


# -- the slot ----------------------------------------------------------------------------------------


def test_a_slot_with_another_plugin(place: Site) -> None:
    run(place, "SELECT pg_create_logical_replication_slot({slot}, 'test_decoding')")
    assert planned(place, "publication").warnings == (), "it reads nothing through the publication"
    error = refusal(place)
    assert "is not ours: plugin is test_decoding, wants pgoutput" in error.problem
    assert "pg_drop_replication_slot" in error.remedy


def test_a_slot_in_another_database(place: Site, postgres: Stack) -> None:
    slot = place.definition.postgres.slot
    with psycopg.connect(postgres.conninfo(), autocommit=True) as conn:
        conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        try:
            assert "database is postgres, wants" in refusal(place).problem
        finally:
            conn.execute("SELECT pg_drop_replication_slot(%s)", (slot,))


def test_a_physical_slot(place: Site) -> None:
    run(place, "SELECT pg_create_physical_replication_slot({slot})")
    try:
        assert "type is physical, wants logical" in refusal(place).problem
    finally:
        run(place, "SELECT pg_drop_replication_slot({slot})")


def test_a_slot_in_use_by_somebody_else(place: Site) -> None:
    apply(place)
    with reading(place, place.database.server.conninfo(place.database.name, application_name="rival")):
        error = refusal(place)
    assert "is in use by postgres (rival), pid" in error.problem


def test_a_slot_in_use_by_the_connector_is_present(place: Site) -> None:
    apply(place)
    user = place.definition.postgres.connector.user
    with reading(place, make_conninfo(place.database.conninfo, user=user, password=PASSWORD)):
        assert planned(place, "slot").state is State.PRESENT


def test_a_slot_made_without_failover_becomes_a_failover_slot(place: Site) -> None:
    run(place, "SELECT pg_create_logical_replication_slot({slot}, 'pgoutput')")
    assert planned(place, "slot").changes[0].field == "failover"
    apply(place)
    assert planned(place, "slot").state is State.PRESENT


@pytest.mark.parametrize("major", [15, 17])
def test_up_to_17_a_slot_older_than_its_publication_is_named(
    postgres_server: Callable[[int], Stack], new_site: NewSite, major: int
) -> None:
    """PostgreSQL up to 17 cannot decode WAL that is older than the publication."""
    site = new_site(postgres_server(major))
    run(
        site,
        "SELECT pg_create_logical_replication_slot({slot}, 'pgoutput')",
        "CREATE TABLE customers (id int PRIMARY KEY)",
        "INSERT INTO customers VALUES (1)",
    )
    warned: list[str] = []
    with site.admin() as conn, pytest.raises(Failed, match="older than the publication") as refused:
        provision.apply_postgres(conn, site.definition, say=warned.append)
    assert any("cannot decode rows of public.outbox" in text for text in warned)
    assert "pg_replication_slot_advance" in refused.value.remedy
    with site.database.connect() as conn:
        conn.execute(refused.value.remedy.split("; ")[1].encode())
    apply(site)
    assert planned(site, "slot").state is State.PRESENT


def test_18_a_publication_made_after_its_slot_is_a_warning_with_the_time(place: Site) -> None:
    """PostgreSQL 18 skips such rows without an error."""
    apply(place)
    run(place, "DROP PUBLICATION {publication}")
    found = planned(place, "publication")
    assert found.state is State.MISSING
    assert "skips, without any error, rows of public.outbox" in found.warnings[0]


# -- who provisions ----------------------------------------------------------------------------------


@pytest.fixture
def limited(place: Site, own_roles: Callable[[Stack, str], None]) -> Callable[..., Site]:
    """The same place, provisioned by a role with these attributes and nothing else."""

    def create(attributes: LiteralString = "", *, owns: bool = False, place: Site = place) -> Site:
        name = f"{place.definition.pipeline}_admin"
        own_roles(place.database.server, name)
        text: LiteralString = "CREATE ROLE {} LOGIN PASSWORD {} " + attributes
        with place.database.connect() as conn:
            conn.execute(sql.SQL(text).format(sql.Identifier(name), PASSWORD))
            if owns:
                owner = sql.SQL("ALTER DATABASE {} OWNER TO {}")
                conn.execute(owner.format(sql.Identifier(place.database.name), sql.Identifier(name)))
        conninfo = make_conninfo(place.database.conninfo, user=name, password=PASSWORD)
        return with_postgres(place, admin=conninfo)

    return create


@pytest.mark.parametrize("major", [16, 17, 18])
def test_an_owner_with_createrole_and_replication_needs_no_superuser(
    limited: Callable[..., Site],
    new_site: NewSite,
    postgres_server: Callable[[int], Stack],
    major: int,
) -> None:
    site = limited("CREATEROLE REPLICATION", owns=True, place=new_site(postgres_server(major)))
    apply(site)
    with site.admin() as conn:
        found = [part.look() for part in provision.postgres_parts(conn, site.definition)]
    assert {one.state for one in found} == {State.PRESENT}


def test_each_missing_right_is_named_with_its_statement(limited: Callable[..., Site]) -> None:
    site = limited()
    with site.admin() as conn:
        found = {one.kind: one for one in (p.look() for p in provision.postgres_parts(conn, site.definition))}
    admin = f'"{site.definition.pipeline}_admin"'
    assert f"ALTER ROLE {admin} CREATEROLE REPLICATION" in found["role"].remedy
    assert f'GRANT CREATE ON SCHEMA "public" TO {admin}' in found["table"].remedy
    assert f"TO {admin}" in found["publication"].remedy
    assert "GRANT CREATE ON DATABASE" in found["publication"].remedy
    assert found["slot"].remedy == f"ALTER ROLE {admin} REPLICATION"


def test_a_table_of_somebody_else(place: Site, limited: Callable[..., Site]) -> None:
    apply(place)
    run(place, "DROP PUBLICATION {publication}", "DROP TRIGGER keep_copy_rows_apart ON outbox")
    site = limited("CREATEROLE REPLICATION", owns=True)
    assert "belongs to postgres" in planned(site, "table").why
    assert "only the owner of public.outbox may publish it" in planned(site, "publication").why


@pytest.mark.parametrize("major", [14, 15])
def test_before_16_only_a_superuser_makes_replication_roles(
    postgres_server: Callable[[int], Stack],
    new_site: NewSite,
    own_roles: Callable[[Stack, str], None],
    major: int,
) -> None:
    site = new_site(postgres_server(major))
    name = f"{site.definition.pipeline}_admin"
    own_roles(site.database.server, name)
    with site.database.connect() as conn:
        text = "CREATE ROLE {} LOGIN CREATEROLE REPLICATION PASSWORD {}"
        conn.execute(sql.SQL(text).format(sql.Identifier(name), PASSWORD))
    conninfo = make_conninfo(site.database.conninfo, user=name, password=PASSWORD)
    found = planned(with_postgres(site, admin=conninfo), "role")
    assert found.state is State.BLOCKED
    assert "as a superuser" in found.remedy or "run as a superuser" in found.remedy
