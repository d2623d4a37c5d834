"""claim() alone, on anybody's connection: the statement that makes a second delivery find nothing."""

from __future__ import annotations

import asyncio
import random
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql as composing
from psycopg.pq import ExecStatus
from psycopg.rows import dict_row
from uuid_utils.compat import uuid7

from fix_stack import Database, Stack
from outbox_consumers import claim, claim_async, sql
from outbox_consumers.errors import InboxUnusable, UsageError
from outbox_consumers.inbox import schema

pytestmark = pytest.mark.stack

NewDatabase: TypeAlias = Callable[[Stack], Database]
NAMES = sorted(
    path.stem
    for path in Path(sql.__file__).parent.glob("*.sql")
    if not path.stem.startswith("durable_")  # see test_durable_sql
)


@pytest.fixture
def inbox(database: Database) -> Database:
    with database.connect() as conn:
        schema.apply(conn, schema.steps())
    return database


def test_a_plain_loop_handles_each_event_once(inbox: Database) -> None:
    deliveries = [uuid7() for _ in range(100)]
    deliveries += random.Random(1).sample(deliveries, 60)
    handled: list[UUID] = []
    with inbox.connect() as conn:
        for event_id in deliveries:
            with conn.transaction():
                if event_id in claim(conn, "billing", [event_id]):
                    handled.append(event_id)
    assert handled == deliveries[:100]


def test_a_webhook_claims_the_sender_s_own_text_id(inbox: Database) -> None:
    def webhook(request: dict[str, str]) -> str:
        with psycopg.connect(inbox.conninfo) as conn:
            if not claim(conn, "webhook", [request["delivery"]]):
                return "seen before"
            return "done"

    assert [webhook({"delivery": "evt_17"}) for _ in range(2)] == ["done", "seen before"]
    assert webhook({"delivery": "evt_18"}) == "done"


def test_a_batch_returns_each_fresh_id_once(inbox: Database) -> None:
    ids = [uuid4() for _ in range(5)]
    with inbox.connect() as conn, conn.transaction():
        assert claim(conn, "billing", ids[:2]) == set(ids[:2])
        assert claim(conn, "billing", ids + ids) == set(ids[2:])
        assert claim(conn, "billing", ids) == set()
        assert claim(conn, "billing", []) == set()
        assert claim(conn, "shipping", ids) == set(ids)


def test_a_rolled_back_claim_can_be_claimed_again(inbox: Database) -> None:
    event_id = uuid7()
    with inbox.connect() as conn:
        with conn.transaction(force_rollback=True):
            assert claim(conn, "billing", [event_id])
        with conn.transaction():
            assert claim(conn, "billing", [event_id]) == {event_id}


def test_a_concurrent_claim_waits_for_the_outcome(inbox: Database) -> None:
    """The unique index is the lock: commit makes the other one a duplicate, rollback makes it the owner."""
    for outcome, expected in (("commit", 0), ("rollback", 1)):
        event_id = uuid7()
        claimed: list[int] = []

        def second(event_id: UUID = event_id, claimed: list[int] = claimed) -> None:
            with inbox.connect() as conn, conn.transaction():
                claimed.append(len(claim(conn, "billing", [event_id])))

        with psycopg.connect(inbox.conninfo) as first:
            claim(first, "billing", [event_id])
            thread = threading.Thread(target=second)
            thread.start()
            thread.join(0.2)
            assert claimed == []
            getattr(first, outcome)()
            thread.join()
        assert claimed == [expected]


def test_overlapping_batches_in_any_order_never_deadlock(inbox: Database) -> None:
    ids = [uuid4() for _ in range(200)]
    failures: list[Exception] = []
    fresh: list[int] = []

    def worker(seed: int) -> None:
        chance = random.Random(seed)
        with inbox.connect() as conn:
            for consumer in range(15):
                try:
                    with conn.transaction():
                        fresh.append(len(claim(conn, f"c{consumer}", chance.sample(ids, 150))))
                except psycopg.Error as error:
                    failures.append(error)

    threads = [threading.Thread(target=worker, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sum(fresh) <= 15 * 200


def test_the_connection_may_have_factories_of_its_own(inbox: Database) -> None:
    event_id = uuid7()
    with psycopg.connect(
        inbox.conninfo, row_factory=dict_row, cursor_factory=psycopg.ClientCursor[Any]
    ) as conn:
        assert claim(conn, "billing", [event_id]) == {event_id}


def test_a_claim_inside_a_pipeline_works(inbox: Database) -> None:
    event_id = uuid7()
    with psycopg.connect(inbox.conninfo) as conn, conn.pipeline():
        assert claim(conn, "billing", [event_id]) == {event_id}


def test_an_asynchronous_claim_does_the_same(inbox: Database) -> None:
    event_id = uuid7()

    async def twice() -> list[int]:
        async with await psycopg.AsyncConnection.connect(inbox.conninfo) as conn:
            return [len(await claim_async(conn, "billing", [event_id])) for _ in range(2)]

    assert asyncio.run(twice()) == [1, 0]


def test_outside_a_transaction_it_is_refused(inbox: Database) -> None:
    with inbox.connect() as conn, pytest.raises(UsageError, match="outside a transaction"):
        claim(conn, "billing", [uuid7()])


def test_without_an_inbox_it_names_the_remedy(database: Database) -> None:
    with (
        psycopg.connect(database.conninfo) as conn,
        pytest.raises(InboxUnusable, match="outboxctl inbox init"),
    ):
        claim(conn, "billing", [uuid7()])


def test_an_inbox_in_another_schema(database: Database) -> None:
    event_id = uuid7()
    with database.connect() as conn:
        conn.execute('CREATE SCHEMA "Odd one"')
        schema.apply(conn, schema.steps("Odd one.in.box"))
        assert schema.missing(conn, "Odd one.in.box") == ()
        assert schema.missing(conn) == tuple(
            f"inbox{x}" for x in ("", "_dead_letter", "_parked", "_journal", "_member", "_attempt")
        )
        with conn.transaction():
            assert claim(conn, "billing", [event_id], table="Odd one.in.box") == {event_id}


@pytest.mark.matrix
def test_the_inbox_works_on_every_server(new_database: NewDatabase, server: Stack) -> None:
    with new_database(server).connect() as conn:
        for _ in range(2):
            schema.apply(conn, schema.steps(roles=["postgres"]))
        event_id = uuid7()
        with conn.transaction():
            assert claim(conn, "billing", [event_id]) == {event_id}
            assert claim(conn, "billing", [event_id]) == set()


@pytest.mark.matrix
def test_every_statement_is_understood_by_every_server(new_database: NewDatabase, server: Stack) -> None:
    with new_database(server).connect() as conn:
        schema.apply(conn, schema.steps())
        refused = {name: reason for name in NAMES if (reason := refusal(conn, name))}
    assert refused == {}


def refusal(conn: psycopg.Connection, name: str) -> str:
    """Let the server parse and analyse a statement, and give what it has against it."""
    parts = {
        **sql.tables("inbox"),
        "partition": sql.table("inbox_default"),
        "first": composing.Literal("00000000-0000-0000-0000-000000000000"),
        "behind": composing.Literal("00000000-0000-0000-0000-000000000001"),
        "role": sql.role("postgres"),
    }
    text = sql.compose(name, **parts).decode()
    numbers: dict[str, int] = {}
    numbered = re.sub(r"%\((\w+)\)s", lambda m: f"${numbers.setdefault(m[1], len(numbers) + 1)}", text)
    result = conn.pgconn.prepare(b"", numbered.encode())
    return "" if result.status == ExecStatus.COMMAND_OK else result.error_message.decode()
