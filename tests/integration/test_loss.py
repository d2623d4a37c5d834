"""Rows that Debezium may lose at a crash: none is lost under our profile, and the traps are real.

Each case is one of the states in which Debezium 3.7.0.Final or earlier lost rows after a kill -9 of
the Connect worker (dbz#76: interleaved transactions; dbz#1554: rows of one COPY page). All cases
share one worker, one kill and one start. The last ones leave our profile on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import LiteralString
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

import fix_stack
from fix_stack import Database, Stack
from local_stack.exports import variables
from local_stack.instance import load
from local_stack.layout import Layout
from loss_lab import ALL_MESSAGES, Lab, Road, definition_of, delivered, interleave
from outbox_connectors.definition import Connect, ConnectAuth
from outbox_pipeline.connect import restart_guard
from outbox_pipeline.connect.client import ConnectClient, SourceOffset
from outbox_pipeline.servers import topics

pytestmark = [pytest.mark.stack, pytest.mark.slow]

STACK = "loss"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one road."""

    road: Road
    stored: SourceOffset  # when the worker was killed
    found: list[UUID]

    @property
    def lost(self) -> set[UUID]:
        return set(self.road.written) - set(self.found)


@dataclass(frozen=True, slots=True)
class Case:
    """How a state is reached: what is written, and how to tell that Connect has stored it."""

    write: Callable[[Road, str], object]
    type: str  # of the stored offset
    stuck: bool = False  # the task fails at a row that the topic refuses
    ends_after_restart: bool = False  # the long transaction
    stepped_back: bool = False
    overrides: Mapping[str, str] = field(default_factory=dict)


def interleaved_then_tick(road: Road, conninfo: str) -> None:
    interleave(road, conninfo)
    road.tick()


def interleaved_with_tick(road: Road, conninfo: str) -> None:
    interleave(road, conninfo, between=road.tick)


def interleaved_then_stuck(road: Road, conninfo: str) -> None:
    """The last thing Debezium delivers is the BEGIN of a transaction whose first row is refused."""
    interleave(road, conninfo, refused=True)
    road.commit_open()


def copy_stuck_at(refused: int) -> Callable[[Road, str], None]:
    return lambda road, _: road.copy(79, refused=refused)


def untriggered_copy(road: Road, _: str) -> None:
    road.conn.execute("DROP TRIGGER keep_copy_rows_apart ON outbox")
    road.copy(79, refused=2)


OURS = {
    "open across the restart, a tick stored": Case(interleaved_then_tick, "MESSAGE", ends_after_restart=True),
    "commits while down, a row stored": Case(interleave, "INSERT"),
    "commits while down, a tick right before the row": Case(interleaved_with_tick, "MESSAGE"),
    "BEGIN read last, its first row stuck": Case(interleaved_then_stuck, "INSERT", stuck=True),
    "COPY page, 50 of 79 rows stored": Case(copy_stuck_at(51), "INSERT", stuck=True),
    "COPY page, exactly one row stored": Case(copy_stuck_at(2), "INSERT", stuck=True),
}
METADATA = {"provide.transaction.metadata": "true"}
TRAPS = {
    "BEGIN stored": Case(interleaved_then_stuck, "BEGIN", stuck=True, overrides=METADATA),
    "BEGIN stored, stepped back": Case(
        interleaved_then_stuck, "BEGIN", stuck=True, stepped_back=True, overrides=METADATA
    ),
    "COPY without the trigger": Case(untriggered_copy, "INSERT", stuck=True),
}
CASES = {**OURS, **TRAPS}


@pytest.fixture(scope="module")
def crash_stack() -> Iterator[Stack]:
    """A stack of its own, because its Connect is killed."""
    with fix_stack.in_use(STACK):
        fix_stack.run(STACK, "reset")
        fix_stack.run(STACK, "up", "--set", "max_prepared_transactions=10")
        yield Stack(STACK, variables(load(Layout(), STACK)))
    fix_stack.run(STACK, "reset")


@pytest.fixture(scope="module")
def outcomes(crash_stack: Stack) -> Iterator[dict[str, Outcome]]:
    connect = Connect(url=crash_stack.connect_url, connector="", auth=ConnectAuth(), config={})
    with ConnectClient(connect) as client:
        lab = Lab(client)
        conninfos = {name: _build(lab, crash_stack, name) for name in CASES}
        for name, road in lab.roads.items():
            CASES[name].write(road, conninfos[name])
        stored = {name: _stored(lab, road, CASES[name]) for name, road in lab.roads.items()}
        crash_stack.kill("connect")
        for name, road in lab.roads.items():
            _while_down(road, CASES[name])
        crash_stack.start("connect")
        for name, road in lab.roads.items():
            if CASES[name].stepped_back:
                _step_back(lab, road, stored[name])
        last = {name: _after_restart(road) for name, road in lab.roads.items()}
        yield {name: Outcome(r, stored[name], delivered(r, last[name])) for name, r in lab.roads.items()}
        for road in lab.roads.values():
            road.conn.close()


def _build(lab: Lab, stack: Stack, case: str) -> str:
    name = f"loss{len(lab.roads)}"
    with psycopg.connect(stack.conninfo(), autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    database = Database(name, stack.conninfo(name), stack)
    lab.build(case, definition_of(name, database), database.connect(), CASES[case].overrides)
    return database.conninfo


def _stored(lab: Lab, road: Road, case: Case) -> SourceOffset:
    if case.stuck:
        lab.wait_for_failure(road)
    return lab.wait_for_offset(road, lambda offset: offset.message_type == case.type)


def _while_down(road: Road, case: Case) -> None:
    topics.alter_config(road.definition.kafka, {road.topic: dict(ALL_MESSAGES)})
    if road.open is not None and not case.ends_after_restart:
        road.commit_open()
    if case.stepped_back:
        _let_in(road, "NOLOGIN")  # or Debezium, back before we are, would skip the rows from here


def _let_in(road: Road, word: LiteralString) -> None:
    user = sql.Identifier(road.definition.postgres.connector.user)
    road.conn.execute(sql.SQL("ALTER ROLE {} " + word).format(user))


def _after_restart(road: Road) -> UUID:
    """Commit what is still open, then one event more: when it has arrived, all others have had to."""
    if road.open is not None:
        road.commit_open()
    return road.add()


def _step_back(lab: Lab, road: Road, stored: SourceOffset) -> None:
    """Mend a dangerous offset: one byte earlier, no record begins, so none is taken for delivered."""
    assert stored.lsn_commit is not None
    lab.client.stop(road.connector)
    lab.client.set_offset(road.connector, stored.lsn_commit - 1)
    _let_in(road, "LOGIN")
    lab.client.resume(road.connector)


def test_the_restart_guard_sees_a_prepared_transaction(outcomes: dict[str, Outcome]) -> None:
    """No process holds it, yet its rows come when it commits; the shared stack has none of its kind."""
    road = outcomes["commits while down, a row stored"].road
    publication = road.definition.postgres.publication
    road.conn.execute("BEGIN")
    road.add(road.conn)
    road.written.pop()  # it is rolled back below
    road.conn.execute("PREPARE TRANSACTION 'two-phase'")
    (found,) = restart_guard.open_transactions(road.conn, publication)
    assert (found.pid, found.gid, found.user) == (None, "two-phase", "postgres")
    road.conn.execute("ROLLBACK PREPARED 'two-phase'")
    assert restart_guard.open_transactions(road.conn, publication) == ()


@pytest.mark.parametrize("case", OURS)
def test_nothing_is_lost(outcomes: dict[str, Outcome], case: str) -> None:
    assert outcomes[case].lost == set()


@pytest.mark.parametrize("case", OURS)
def test_a_dangerous_offset_is_never_stored(outcomes: dict[str, Outcome], case: str) -> None:
    assert outcomes[case].stored.message_type in {"INSERT", "MESSAGE"}


@pytest.mark.parametrize("case", OURS)
def test_what_was_stored_is_not_sent_again(outcomes: dict[str, Outcome], case: str) -> None:
    outcome = outcomes[case]
    again = {event for event in outcome.found if outcome.found.count(event) > 1}
    # A refused row fails the task, not the producer: rows behind it were on their way already.
    assert again <= (set(outcome.road.behind_refused) if CASES[case].stuck else set())


def test_transaction_metadata_loses_the_rows_up_to_the_coincidence(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["BEGIN stored"]
    assert outcome.stored.message_type == "BEGIN"
    # Rows 1 to 6; row 6 may have been with the producer when row 1 failed the task.
    assert set(outcome.road.long[:5]) <= outcome.lost <= set(outcome.road.long[:6])


def test_one_byte_back_saves_them(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["BEGIN stored, stepped back"]
    assert outcome.stored.message_type == "BEGIN"
    assert outcome.lost == set()


def test_a_copy_page_without_the_trigger_is_lost_but_for_its_first_row(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["COPY without the trigger"]
    first, refused = outcome.road.written[:2]
    assert first in outcome.found
    # The refused row and those behind it, but for what the producer had sent before the task failed.
    assert refused in outcome.lost
