"""The outbox is kept tidy: partitions ahead of their day, and the watch that sees to it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from fix_provision import PASSWORD, NewSite
from fix_stack import Stack
from outbox_connectors.definition import Secret
from outbox_pipeline.errors import Refused
from outbox_pipeline.operations import maintenance
from outbox_pipeline.provision import tables

pytestmark = pytest.mark.stack

NOW = datetime.now(UTC)


def test_partitions_are_made_as_the_days_go_by(server: Stack, new_site: NewSite) -> None:
    site = new_site(server, outbox={"partition": "daily"})
    outbox = site.definition.outbox
    with site.admin() as conn:
        for statement in tables.ddl(outbox, NOW.date()):
            conn.execute(statement)
        assert maintenance.make_ahead(conn, site.definition, NOW) == ()
        later = NOW + timedelta(days=2)
        made = maintenance.make_ahead(conn, site.definition, later)
        assert made == tables.expected_partitions(outbox, later.date())[-2:]
        assert maintenance.make_ahead(conn, site.definition, later) == ()
        conn.execute("ALTER TABLE outbox DROP COLUMN payload")
        with pytest.raises(Refused):
            maintenance.make_ahead(conn, site.definition, later + timedelta(days=1))


def test_only_partitions_are_made(postgres: Stack, new_site: NewSite) -> None:
    """What else differs is the operator's, who may want it so."""
    site = new_site(postgres, outbox={"partition": "daily"})
    with site.admin() as conn:
        for statement in tables.ddl(site.definition.outbox, NOW.date()):
            conn.execute(statement)
        trigger = sql.Identifier(tables.TRIGGER)
        conn.execute(sql.SQL("ALTER TABLE outbox DISABLE TRIGGER {}").format(trigger))
        maintenance.make_ahead(conn, site.definition, NOW + timedelta(days=1))
        live = tables.read(conn, site.definition.outbox.table)
        assert live is not None
        assert live.row_triggers[tables.TRIGGER] is False


def test_a_whole_turn_says_what_it_did(postgres: Stack, new_site: NewSite) -> None:
    site = new_site(postgres, outbox={"partition": "daily"})
    with site.admin() as conn:
        yesterday = datetime.now(UTC).date() - timedelta(days=1)
        for statement in tables.ddl(site.definition.outbox, yesterday):
            conn.execute(statement)
    done = maintenance.maintain(site.definition, lambda line: None)
    assert len(done.made) == 1
    assert str(done) == f"partition {done.made[0]} made"
    assert str(maintenance.maintain(site.definition, lambda line: None)) == ""


def test_a_writer_is_told_that_it_takes_the_owner(postgres: Stack, new_site: NewSite) -> None:
    site = new_site(postgres)
    writer = site.definition.outbox.writers[0]
    with site.admin() as conn:
        for statement in tables.ddl(site.definition.outbox, NOW.date()):
            conn.execute(statement)
    as_writer = Secret(make_conninfo(site.database.conninfo, user=writer, password=PASSWORD))
    definition = replace(site.definition, postgres=replace(site.definition.postgres, admin=as_writer))
    with pytest.raises(Refused, match=f"role {writer} may not tidy: {writer} lacks ") as raised:
        maintenance.maintain(definition, lambda line: None)
    assert "--no-tidy" in raised.value.remedy
