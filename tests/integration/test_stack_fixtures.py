"""The databases that tests get."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from fix_stack import Database, Stack
from local_stack.programs import MAJORS

pytestmark = pytest.mark.stack


def test_a_test_gets_an_empty_database_of_its_own(postgres: Stack, database: Database) -> None:
    with database.connect() as conn:
        tables = conn.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
        assert tables == (0,)
        assert conn.info.dbname == database.name


def test_two_databases_differ(postgres: Stack, new_database: Callable[[Stack], Database]) -> None:
    assert new_database(postgres).name != new_database(postgres).name


@pytest.mark.parametrize("major", MAJORS)
def test_every_major_is_there_with_logical_decoding(
    postgres_server: Callable[[int], Stack], new_database: Callable[[Stack], Database], major: int
) -> None:
    database = new_database(postgres_server(major))
    with psycopg.connect(database.conninfo, autocommit=True) as conn:
        assert conn.info.server_version // 10000 == major
        assert conn.execute("SHOW wal_level").fetchone() == ("logical",)
        conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (database.name,))


def test_the_applications_connect_with_their_password(postgres: Stack) -> None:
    password = postgres.environ["OUTBOX_APP_PASSWORD"]
    for role, dbname in (("shop_app", "shop"), ("billing_app", "billing")):
        with psycopg.connect(postgres.conninfo(dbname, user=role, password=password)) as conn:
            assert conn.execute("SELECT current_user, current_database()").fetchone() == (role, dbname)
    with psycopg.connect(postgres.conninfo("billing", user="billing_app", password=password)) as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS own (id int)")
        conn.rollback()
