"""Logical messages on every PostgreSQL: what emit returns is the position that a decoder sees."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import psycopg
import pytest

from fix_stack import Database, Stack
from outbox_pipeline.servers import logical_messages

MAJORS = [int(major) for major in os.environ.get("OUTBOX_TEST_MAJORS", "0").split()]

pytestmark = [pytest.mark.stack, pytest.mark.matrix]


@pytest.fixture(params=MAJORS, ids=lambda major: f"postgres-{major}" if major else "postgres")
def conn(
    request: pytest.FixtureRequest,
    new_database: Callable[[Stack], Database],
    postgres_server: Callable[[int], Stack],
) -> Iterator[psycopg.Connection]:
    server = postgres_server(request.param) if request.param else request.getfixturevalue("postgres")
    with new_database(server).connect() as conn:
        conn.execute("CREATE TABLE t (id int)")
        conn.execute("CREATE PUBLICATION p FOR TABLE t")
        conn.execute("SELECT pg_create_logical_replication_slot('s_' || current_database(), 'pgoutput')")
        yield conn


def decoded(conn: psycopg.Connection) -> list[tuple[int, str, bytes, bool]]:
    """Read the messages in the slot as pgoutput sends them: position, prefix, content, transactional."""
    rows = conn.execute(
        "SELECT data FROM pg_logical_slot_get_binary_changes('s_' || current_database(), NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'p', 'messages', 'true')"
    )
    found = []
    for (data,) in rows:
        if data[:1] == b"M":
            prefix, _, rest = data[10:].partition(b"\0")
            found.append((int.from_bytes(data[2:10]), prefix.decode(), rest[4:], bool(data[1] & 1)))
    return found


def test_the_position_returned_is_the_position_decoded(conn: psycopg.Connection) -> None:
    """The canary is recognised by it. Sizes around a WAL page (8 kB) included: there the two could differ."""
    sizes = [0, 1, 100, *range(7000, 9000, 37), 20_000]
    sent = [(logical_messages.emit(conn, "shop.canary", "x" * size), size) for size in sizes]
    conn.execute("SELECT pg_switch_wal()")  # flushes, and the next message begins a file
    sent.append((logical_messages.emit(conn, "shop.canary", ""), 0))
    conn.execute("INSERT INTO t VALUES (1)")  # its commit flushes what is before it
    assert [(position, len(content)) for position, _, content, _ in decoded(conn)] == sent


def test_a_message_leaves_whether_or_not_its_transaction_commits(conn: psycopg.Connection) -> None:
    with conn.transaction(force_rollback=True):
        logical_messages.emit(conn, "a.tick")
    conn.execute("INSERT INTO t VALUES (1)")
    assert [(prefix, transactional) for _, prefix, _, transactional in decoded(conn)] == [("a.tick", False)]


def test_a_transactional_message_belongs_to_its_transaction(conn: psycopg.Connection) -> None:
    with conn.transaction(force_rollback=True):
        logical_messages.emit(conn, "a.gone", transactional=True)
    with conn.transaction():
        logical_messages.emit(conn, "a.kept", "é", transactional=True)
    assert [found[1:] for found in decoded(conn)] == [("a.kept", "é".encode(), True)]


def test_emit_needs_no_right_beyond_connect(conn: psycopg.Connection) -> None:
    conn.execute("SET ROLE shop_app")
    assert logical_messages.emit(conn, "shop.heartbeat") > 0
