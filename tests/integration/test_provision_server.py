"""Server settings that decoding needs, on a server that lacks them; and sessions that hold it up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql

from fix_provision import NewSite, Site
from fix_stack import Database, Stack, in_use, run
from local_stack.exports import variables
from local_stack.instance import load
from local_stack.layout import Layout
from outbox_connectors.errors import Failed
from outbox_pipeline import provision
from outbox_pipeline.provision import exclusive

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def spare() -> Iterator[Stack]:
    """A PostgreSQL that tests may set up and restart as they like."""
    with in_use("spare"):
        run("spare", "up", "postgres")
        yield Stack("spare", variables(load(Layout(), "spare")))


@contextmanager
def settings(server: Stack, values: Mapping[str, str]) -> Iterator[None]:
    """Restart a server with other settings, and again without them."""
    try:
        with psycopg.connect(server.conninfo(), autocommit=True) as conn:
            for name, value in values.items():
                conn.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), value))
        server.stop("postgres")
        server.start("postgres")
        yield
    finally:
        with psycopg.connect(server.conninfo(), autocommit=True) as conn:
            conn.execute("ALTER SYSTEM RESET ALL")
        server.stop("postgres")
        server.start("postgres")


@pytest.mark.parametrize(
    ("values", "problem", "remedy"),
    [
        ({"wal_level": "replica"}, "wal_level is replica, wants logical", "ALTER SYSTEM SET wal_level"),
        (
            {"max_replication_slots": "0"},
            "max_replication_slots is 0, all in use",
            "max_replication_slots = 4",
        ),
        ({"max_wal_senders": "0"}, "max_wal_senders is 0, all in use", "max_wal_senders = 4"),
        (
            {"output_plugin_libraries": "test_decoding"},
            "output_plugin_libraries is test_decoding, wants with pgoutput",
            "add pgoutput",
        ),
    ],
)
def test_a_server_that_cannot_decode_is_left_untouched(
    spare: Stack, new_site: NewSite, values: dict[str, str], problem: str, remedy: str
) -> None:
    with settings(spare, values):
        site = new_site(spare)
        with site.admin() as conn, pytest.raises(Failed) as refused:
            provision.apply_postgres(conn, site.definition)
        assert problem in refused.value.problem
        assert remedy in refused.value.remedy
        with site.admin() as conn:
            assert conn.execute("SELECT to_regclass('outbox')").fetchone() == (None,)


@pytest.fixture
def place(new_site: NewSite, postgres: Stack) -> Site:
    return new_site(postgres)


def test_a_transaction_that_holds_the_slot_up_is_named(place: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provision.pipeline, "SLOT_TIMEOUT_SECONDS", 0.5)
    with place.database.connect() as other, other.transaction(force_rollback=True):
        other.execute("SET application_name = 'nightly report'")
        other.execute("CREATE TABLE unfinished (id int)")
        said: list[str] = []
        with place.admin() as conn, pytest.raises(Failed) as refused:
            provision.apply_postgres(conn, place.definition, say=said.append)
    assert any("open transactions, the oldest is pid" in text for text in said)
    assert "cannot be created while pid" in refused.value.problem
    with place.admin() as conn:
        provision.apply_postgres(conn, place.definition)


def test_a_session_that_locks_the_table_does_not_make_writers_queue(
    place: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provision.pipeline, "LOCK_TIMEOUT_SECONDS", 0.5)
    with place.admin() as conn:
        provision.apply_postgres(conn, place.definition)
        conn.execute("DROP TRIGGER keep_copy_rows_apart ON outbox")
        with place.database.connect() as other, other.transaction(force_rollback=True):
            other.execute("LOCK TABLE outbox IN SHARE MODE")
            with pytest.raises(Failed, match="another session holds a lock"):
                provision.apply_postgres(conn, place.definition)
        provision.apply_postgres(conn, place.definition)


def test_the_second_names_the_first_and_gives_up_in_the_end(
    place: Site,
) -> None:
    said: list[str] = []
    now = iter(range(0, 10_000, 50))
    with place.admin() as first, place.admin() as second:
        first.execute("SET application_name = 'apply in the cellar'")
        with exclusive.hold(first, "shop", say=said.append):
            with (
                pytest.raises(Failed, match="has been changing pipeline shop for more than 120 s"),
                exclusive.hold(
                    second, "shop", say=said.append, clock=lambda: next(now), sleep=lambda _: None
                ),
            ):
                pass
            with exclusive.hold(second, "another", say=said.append):
                pass
        with exclusive.hold(second, "shop", say=said.append):
            pass
    assert len(said) == 1
    assert "apply in the cellar" in said[0]


def test_the_lock_goes_with_its_session(new_database: Callable[[Stack], Database], postgres: Stack) -> None:
    database = new_database(postgres)
    with database.connect() as second:
        first = database.connect()
        held = exclusive.hold(first, "shop", say=lambda _: None)
        held.__enter__()
        first.close()
        with exclusive.hold(second, "shop", say=lambda _: None):
            pass
