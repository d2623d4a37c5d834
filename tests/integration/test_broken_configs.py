"""Connectors that Connect's validation calls fine and that do not work: what becomes of each, what we say.

All stand on one database and one worker, each with a slot, a prefix and topics of its own. A sound one
stands beside them: when its event has arrived, those of the others have had the time to.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import psycopg
import pytest
from psycopg import sql

from asking import administrator
from fix_stack import Database, Stack
from loss_lab import Road, definition_of
from outbox_connectors import checks, profile
from outbox_connectors.profile import Version
from outbox_pipeline import provision
from outbox_pipeline.connect import offsets, registration
from outbox_pipeline.connect.client import ConnectClient, ConnectorStatus
from outbox_pipeline.servers import topics
from waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack

ROUTER = "transforms.outbox."


@dataclass(frozen=True, slots=True)
class Broken:
    """A mistake. `says` is part of the explanation of the failure; None: RUNNING, and silent."""

    change: Mapping[str, str | None]
    says: str | None = None
    code: str = ""  # of our own finding; empty: only the database's side shows it
    event_topic: bool = False  # the event arrives all the same
    table_topic: bool = False  # the row lies un-routed on Debezium's own topic
    slot: bool = True


CASES = {
    "publication missing": Broken({"publication.name": "nobody"}, "Publication autocreation is disabled"),
    "plugin.name missing": Broken({"plugin.name": None}, "", "plugin-name"),
    "predicate undefined": Broken(
        {f"{ROUTER}predicate": "isOutbx"}, "predicates.isOutbx.plugin.version", "undefined-predicate"
    ),
    "predicates missing": Broken({"predicates": None}, "predicates.isOutbox", "undefined-predicate"),
    "topic.creation without replication factor": Broken(
        {"topic.creation.default.replication.factor": None}, "topic.creation.default", "topic-creation"
    ),
    "placement word": Broken(
        {f"{ROUTER}table.fields.additional.placement": "event_type:heder"}, "", "placement"
    ),
    "route.topic.regex": Broken({f"{ROUTER}route.topic.regex": "(("}, "", "route-regex"),
    "replication factor above brokers": Broken(
        {"topic.creation.default.replication.factor": "3"}, "replication factor", ""
    ),
    "slot missing": Broken({}, event_topic=True, slot=False),
    "table name": Broken({"table.include.list": r"public\.outbux"}, code="predicate-pattern"),
    "transforms missing": Broken({"transforms": None}, code="no-router", table_topic=True),
    "predicate pattern": Broken(
        {"predicates.isOutbox.pattern": "nothing"}, code="predicate-pattern", table_topic=True
    ),
    "router key": Broken(
        {f"{ROUTER}table.field.event.keyy": "id"}, code="unknown-router-key", event_topic=True
    ),
    "offset.mismatch.strategy": Broken(
        {"offset.mismatch.strategy": "no_validaton"}, code="offset-mismatch-strategy", event_topic=True
    ),
    "tasks.max": Broken({"tasks.max": "4"}, code="tasks-max", event_topic=True),
}
SOUND = "sound"


@dataclass(slots=True)
class Seen:
    """What became of a case."""

    config: dict[str, str]
    errors: int  # of Connect's validation
    status: ConnectorStatus
    findings: set[str]
    verdicts: set[str]  # before it was registered
    topics: set[str]


@dataclass(slots=True)
class Ward:
    """The database, the worker and the cases on them."""

    road: Road
    client: ConnectClient
    version: Version
    major: int

    def config(self, case: str, number: int) -> dict[str, str]:
        prefix = self.prefix(number)
        definition = self.road.definition
        sound = profile.render(definition, debezium=self.version, postgres_major=self.major)
        own = {
            "topic.prefix": prefix,
            "slot.name": prefix,
            "predicates.isOutbox.pattern": rf"{prefix}\.public\.outbox",
            f"{ROUTER}route.topic.replacement": f"{prefix}.event.${{routedByValue}}",
            "topic.creation.groups": "",
        }
        sound = {k: v for k, v in sound.items() if ".messages." not in k and ".aggregate_" not in k}
        change = CASES[case].change if case in CASES else {}
        return {key: value for key, value in {**sound, **own, **change}.items() if value}

    def prefix(self, number: int) -> str:
        return f"{self.road.definition.pipeline}_{number}"

    def create_slot(self, name: str) -> None:
        self.road.conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))


@pytest.fixture(scope="module")
def ward(stack: Stack) -> Iterator[Ward]:
    """A provisioned database; connectors, topics, slots and role are removed at the end."""
    name = f"w{uuid.uuid4().hex[:8]}"
    with psycopg.connect(stack.conninfo(), autocommit=True) as admin, ExitStack() as made:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        database = Database(name, stack.conninfo(name), stack)
        made.callback(_drop, admin, name)
        conn = made.enter_context(database.connect())
        definition = definition_of(name, database)
        provision.apply_postgres(conn, definition)
        client = made.enter_context(ConnectClient(definition.connect))
        made.callback(_clean, client, definition.kafka.client, name)
        version = registration.require_debezium(client)
        yield Ward(Road(definition, conn), client, version, conn.info.server_version // 10000)


def _clean(client: ConnectClient, kafka: Mapping[str, str], prefix: str) -> None:
    for name in client.names():
        if name.startswith(prefix):
            client.delete(name)
    admin = administrator(kafka)
    names = [name for name in admin.list_topics(timeout=PATIENCE_SECONDS).topics if name.startswith(prefix)]
    for future in admin.delete_topics(names, operation_timeout=PATIENCE_SECONDS).values():
        future.result()


def _drop(admin: psycopg.Connection, name: str) -> None:
    def dropped() -> bool:
        rows = admin.execute(
            "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s", (name,)
        ).fetchall()
        for slot, pid in rows:
            if pid is not None:
                admin.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
            else:
                admin.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        return not rows

    assert until(dropped)
    admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
    admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(f"{name}_cdc")))


@pytest.fixture(scope="module")
def seen(ward: Ward) -> dict[str, Seen]:
    """Register every case, write one event, and look at them all."""
    names = [*CASES, SOUND]
    found = {case: _registered(ward, case, number) for number, case in enumerate(names)}
    for number, case in enumerate(names):
        settled = until(partial(_settled, ward, number, case))
        assert settled, (case, ward.client.status(ward.prefix(number)))
    ward.road.add()
    arrived = {number: f"{ward.prefix(number)}.event.order" for number in range(len(names))}
    here = [arrived[n] for n, c in enumerate(names) if c == SOUND or CASES[c].event_topic]
    unrouted = [n for n, c in enumerate(names) if c != SOUND and CASES[c].table_topic]
    here += [f"{ward.prefix(n)}.public.outbox" for n in unrouted]
    assert until(lambda: _all_there(ward, here))
    for number, case in enumerate(names):
        assert until(partial(_settled, ward, number, case, after=True)), case
        status = ward.client.status(ward.prefix(number))
        assert status is not None
        found[case].status = status
        candidates = (arrived[number], f"{ward.prefix(number)}.public.outbox")
        there = topics.inspect(ward.road.definition.kafka, candidates)
        found[case].topics = {name.removeprefix(ward.prefix(number)) for name, t in there.items() if t}
    return found


def _registered(ward: Ward, case: str, number: int) -> Seen:
    name, config = ward.prefix(number), ward.config(case, number)
    if case == SOUND or CASES[case].slot:
        ward.create_slot(name)
    plan = registration.prepare(ward.client, name, config, postgres_major=ward.major)
    verdicts = {v.code for v in offsets.verdicts(offsets.read(ward.road.conn, config, None))}
    ward.client.put_config(name, config)
    findings = {finding.code for finding in plan.findings}
    return Seen(config, len(plan.errors), ConnectorStatus(name, "", "", ()), findings, verdicts, set())


def _settled(ward: Ward, number: int, case: str, *, after: bool = False) -> bool:
    """Tell whether a connector is where it has to end; some fail only at the first row."""
    status = ward.client.status(ward.prefix(number))
    if status is None:
        return False
    if after and case in CASES and CASES[case].says is not None:
        return status.failed
    return status.failed or [task.state for task in status.tasks] == ["RUNNING"]


def _all_there(ward: Ward, names: list[str]) -> bool:
    return all(state is not None for state in topics.inspect(ward.road.definition.kafka, names).values())


@pytest.mark.parametrize("case", CASES)
def test_connect_calls_it_fine(seen: dict[str, Seen], case: str) -> None:
    assert seen[case].errors == 0


@pytest.mark.parametrize("case", CASES)
def test_it_ends_as_described(seen: dict[str, Seen], case: str) -> None:
    broken, found = CASES[case], seen[case]
    if broken.says is None:
        assert not found.status.failed
        assert found.topics == {
            *([".event.order"] if broken.event_topic else []),
            *([".public.outbox"] if broken.table_topic else []),
        }
    else:
        assert found.status.failed
        assert broken.says in registration.explain(found.status)
        assert "\n" not in registration.explain(found.status)
        assert found.topics == set()


@pytest.mark.parametrize("case", [case for case, broken in CASES.items() if broken.code])
def test_our_checks_find_it(seen: dict[str, Seen], case: str) -> None:
    assert CASES[case].code in seen[case].findings


@pytest.mark.parametrize("case", [case for case, broken in CASES.items() if not broken.slot])
def test_a_missing_slot_is_a_verdict_before_the_start(seen: dict[str, Seen], case: str) -> None:
    """The start itself creates the slot at the end of the log, without a word."""
    assert seen[case].verdicts == {"slot_missing"}


def test_the_sound_one_has_no_finding_and_delivers(seen: dict[str, Seen], ward: Ward) -> None:
    found = seen[SOUND]
    worst = checks.worst(checks.check(found.config, debezium=ward.version, postgres_major=ward.major))
    assert (found.errors, worst) == (0, checks.Severity.OK)
    assert found.topics == {".event.order"}
