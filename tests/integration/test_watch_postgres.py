"""The watch's look at PostgreSQL on every supported version: complete, bounded, harmless, with few rights."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql as composed

from fix_stack import Database, Stack
from outbox_connectors.definition import TableName
from outbox_pipeline import sql
from outbox_pipeline.errors import Unreachable
from outbox_pipeline.watch.sample import PostgresSample, WatchedNames
from outbox_pipeline.watch.sources.postgres import SETTINGS, PostgresSource
from waiting import until

MAJORS = tuple(int(major) for major in os.environ.get("OUTBOX_TEST_MAJORS", "14 18").split())

pytestmark = [pytest.mark.stack, pytest.mark.matrix]

TABLE = """
CREATE TABLE outbox (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), position bigint GENERATED ALWAYS AS IDENTITY,
    occurred_at timestamptz NOT NULL DEFAULT clock_timestamp(), payload jsonb)
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A database with an outbox, its publication and slot."""

    database: Database
    names: WatchedNames
    admin: psycopg.Connection[Any]
    major: int

    def source(self, **login: str) -> PostgresSource:
        def connect() -> psycopg.Connection[Any]:
            return psycopg.connect(
                self.database.server.conninfo(self.database.name, **login), autocommit=True
            )

        return PostgresSource(connect, self.names, TableName("public", "outbox"))

    def write(self, statement: LiteralString) -> None:
        """Run a statement in a session that ends: PostgreSQL 14 counts its rows only then."""
        with self.database.connect() as conn:
            conn.execute(statement)

    def role(self, name: str, *grants: str) -> dict[str, str]:
        """Make a login and return its libpq settings."""
        role = f"{name}_{self.database.name}"
        self.admin.execute(
            composed.SQL("CREATE ROLE {} LOGIN PASSWORD 'secret'").format(composed.Identifier(role))
        )
        for grant in grants:
            self.admin.execute(composed.SQL(grant).format(composed.Identifier(role)))
        return {"user": role, "password": "secret"}


@pytest.fixture(params=MAJORS)
def place(
    request: pytest.FixtureRequest,
    postgres_server: Callable[[int], Stack],
    new_database: Callable[[Stack], Database],
    pipeline_name: str,
) -> Iterator[Place]:
    server = postgres_server(request.param)
    database = new_database(server)
    names = WatchedNames(
        pipeline=pipeline_name,
        database=database.name,
        slot=pipeline_name,
        publication=pipeline_name,
        table="public.outbox",
        connector=pipeline_name,
        connector_user="cdc",
        ticker=f"outboxctl watch {pipeline_name}",
    )
    with database.connect() as admin:
        admin.execute(TABLE)
        admin.execute(
            composed.SQL("CREATE PUBLICATION {} FOR TABLE outbox WITH (publish = 'insert')").format(
                composed.Identifier(pipeline_name)
            )
        )
        admin.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (pipeline_name,))
        yield Place(database, names, admin, request.param)
        for (role,) in admin.execute(
            "SELECT rolname FROM pg_roles WHERE rolname LIKE %s", (f"%{database.name}",)
        ).fetchall():
            admin.execute(composed.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(composed.Identifier(role)))


def counted(source: PostgresSource, rows: int) -> PostgresSample:
    """Look until the server has counted so many rows: sessions report them late."""

    def look() -> PostgresSample | None:
        sample = source.look()
        return sample if sample.outbox is not None and sample.outbox.inserted == rows else None

    found = until(look, f"a count of {rows}")
    assert found is not None
    return found


def test_a_sample_is_complete(place: Place) -> None:
    place.write("INSERT INTO outbox (payload) VALUES ('{}')")
    source = place.source()
    sample = counted(source, 1)
    source.close()
    server = sample.server
    assert server.major == place.major
    assert server.monitor
    assert server.wal_dir_bytes is not None
    assert server.wal_dir_bytes > 0
    assert server.wal_position >= server.redo_position > 0
    assert abs(server.clock - time.time()) < 60
    assert server.settings.wal_level == "logical"
    assert server.settings.segment_bytes >= 1024 * 1024
    assert server.settings.checkpoint_timeout >= 30
    assert sample.outbox is not None
    assert (sample.outbox.inserted, sample.outbox.readable) == (1, True)
    assert sample.outbox.oldest_seconds is not None
    assert 0 <= sample.outbox.oldest_seconds < 60
    assert sample.publication is not None
    assert (sample.publication.publishes_insert, sample.publication.covers_table) == (True, True)
    slot = next(slot for slot in sample.slots if slot.name == place.names.slot)
    assert (slot.kind, slot.plugin, slot.database) == ("logical", "pgoutput", place.names.database)
    assert slot.restart_lsn is not None
    assert slot.confirmed_lsn is not None
    assert (slot.active, slot.lost, slot.wal_status) == (False, False, "reserved")
    assert (slot.inactive_seconds is not None) is (place.major >= 17)


def test_the_sample_takes_no_lock_above_access_share(place: Place) -> None:
    with place.database.connect() as conn:
        conn.execute("BEGIN")
        parameters = {
            "schema": "public",
            "table": "outbox",
            "publication": place.names.publication,
            "ticker": "",
            "settings": list(SETTINGS),
        }
        conn.execute(sql.get("watch_sample", place.major), parameters)
        locks = conn.execute(
            "SELECT DISTINCT mode FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation'"
        ).fetchall()
    assert locks == [("AccessShareLock",)]


def test_the_session_can_change_nothing(place: Place) -> None:
    source = place.source()
    source.look()
    conn = source._conn
    assert conn is not None
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        conn.execute("INSERT INTO public.outbox (payload) VALUES ('{}')")
    source.close()


def test_a_role_without_rights_sees_less_and_never_fails(place: Place) -> None:
    source = place.source(**place.role("nobody"))
    sample = source.look()
    source.close()
    assert not sample.server.monitor
    assert sample.server.wal_dir_bytes is None
    assert sample.outbox is not None
    assert (sample.outbox.readable, sample.outbox.oldest_seconds) == (False, None)
    assert any(slot.name == place.names.slot and slot.restart_lsn is not None for slot in sample.slots)


def test_pg_monitor_is_all_it_takes(place: Place) -> None:
    login = place.role("monitor", "GRANT pg_monitor TO {}")
    source = place.source(**login)
    sample = source.look()
    source.close()
    assert sample.server.monitor
    assert sample.server.wal_dir_bytes is not None


def test_holders_are_seen_across_databases_and_without_rights(
    place: Place, new_database: Callable[[Stack], Database]
) -> None:
    """A READ COMMITTED session that has written has an xid and no xmin: the usual queries miss it."""
    other = new_database(place.database.server)
    with other.connect() as writer:
        writer.execute("CREATE TABLE t (x int)")
        writer.execute("BEGIN")
        writer.execute("INSERT INTO t VALUES (1)")
        pid = writer.info.backend_pid
        for login, knows in ((place.role("blind"), False), ({}, True)):
            source = place.source(**login)
            sample = source.look()
            source.close()
            holder = next(holder for holder in sample.holders if holder.pid == pid)
            assert holder.database == other.name
            assert holder.xid is not None
            assert holder.xmin_age is None
            assert (holder.seconds is not None) is knows
            assert (holder.state == "idle in transaction") is knows


def test_what_is_missing_is_none_and_a_locked_table_does_not_hang(place: Place) -> None:
    source = place.source()
    source.look()
    with place.database.connect() as locker:
        locker.execute("BEGIN; LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
        sample = source.look()
        assert sample.outbox is not None
        assert sample.outbox.oldest_seconds is None
        locker.execute("ROLLBACK")
    assert source.look().outbox is not None
    place.admin.execute("DROP TABLE outbox")
    place.admin.execute(
        composed.SQL("DROP PUBLICATION {}").format(composed.Identifier(place.names.publication))
    )
    place.admin.execute("SELECT pg_drop_replication_slot(%s)", (place.names.slot,))
    sample = source.look()
    source.close()
    assert (sample.outbox, sample.publication) == (None, None)
    assert place.names.slot not in [slot.name for slot in sample.slots]


@pytest.mark.parametrize("via_root", [True, False])
def test_a_partitioned_outbox_is_the_sum_of_its_partitions(place: Place, via_root: bool) -> None:
    place.admin.execute("DROP TABLE outbox")
    place.admin.execute(
        "CREATE TABLE outbox (id uuid DEFAULT gen_random_uuid(), occurred_at timestamptz NOT NULL "
        "DEFAULT now(),"
        " PRIMARY KEY (id, occurred_at)) PARTITION BY RANGE (occurred_at)"
    )
    place.admin.execute(
        "CREATE TABLE outbox_old PARTITION OF outbox FOR VALUES FROM (MINVALUE) TO ('2020-01-01')"
    )
    place.admin.execute(
        "CREATE TABLE outbox_new PARTITION OF outbox FOR VALUES FROM ('2020-01-01') TO (MAXVALUE)"
    )
    place.write("INSERT INTO outbox DEFAULT VALUES")
    place.write("INSERT INTO outbox (occurred_at) VALUES ('2010-01-01')")
    publication = composed.Identifier(place.names.publication)
    for table, covered in (("outbox", True), ("outbox_old", False)):
        place.admin.execute(composed.SQL("DROP PUBLICATION {}").format(publication))
        place.admin.execute(
            composed.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = {})").format(
                publication, composed.Identifier(table), composed.Literal(via_root)
            )
        )
        source = place.source()
        sample = counted(source, 2)
        source.close()
        assert sample.publication is not None
        assert sample.publication.covers_table is covered


@pytest.mark.parametrize(
    ("publication", "first", "covered", "filtered"),
    [
        ("FOR ALL TABLES", 14, True, False),
        ("FOR TABLES IN SCHEMA public", 15, True, False),
        ("FOR TABLE outbox WHERE (position > 3)", 15, True, True),
        ("", 14, False, False),
    ],
)
def test_every_way_to_publish_is_understood(
    place: Place, publication: LiteralString, first: int, covered: bool, filtered: bool
) -> None:
    if place.major < first:
        pytest.skip(f"comes with PostgreSQL {first}")
    name = composed.Identifier(place.names.publication)
    place.admin.execute(composed.SQL("DROP PUBLICATION {}").format(name))
    place.admin.execute(composed.SQL("CREATE PUBLICATION {} ").format(name) + composed.SQL(publication))
    source = place.source()
    found = source.look().publication
    source.close()
    assert found is not None
    assert (found.covers_table, found.row_filter) == (covered, filtered)


def test_tickers_are_counted(place: Place) -> None:
    source = place.source()
    assert source.look().tickers == 0
    with psycopg.connect(place.database.conninfo, application_name=place.names.ticker):
        assert source.look().tickers == 1
    source.close()


def test_a_broken_session_is_opened_again(place: Place) -> None:
    source = place.source()
    source.look()
    assert source._conn is not None
    place.admin.execute("SELECT pg_terminate_backend(%s, 5000)", (source._conn.info.backend_pid,))
    with pytest.raises(Unreachable):
        source.look()
    assert source.look().outbox is not None
    source.close()


def test_a_session_that_cannot_be_set_up_is_closed(place: Place) -> None:
    opened: list[psycopg.Connection[Any]] = []

    def connect() -> psycopg.Connection[Any]:
        conn = psycopg.connect(place.database.conninfo, autocommit=True)
        opened.append(conn)
        with suppress(psycopg.errors.DivisionByZero):
            conn.execute("BEGIN; SELECT 1 / 0")
        return conn

    with pytest.raises(Unreachable):
        PostgresSource(connect, place.names, TableName("public", "outbox")).look()
    assert [conn.closed for conn in opened] == [True]
