"""What the relay needs in PostgreSQL and Kafka, planned and made like every other object.

The number of shards is part of an index and of which worker reads what, so it is fixed when the
relay is set up: everybody reads it from the database, nobody from a command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final, LiteralString

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow, dict_row

from outbox_connectors.definition import Definition, Outbox, TopicSpec
from outbox_pipeline import sql as statements
from outbox_pipeline.errors import Failed
from outbox_pipeline.provision import event_topics, roles, tables
from outbox_pipeline.provision.pipeline import refuse_blocked
from outbox_pipeline.relay.names import RelayNames, identifiers, relay_names, shard_of
from outbox_pipeline.relay.session import read_settings
from outbox_pipeline.servers import admin_rights, topics
from outbox_pipeline.servers.plan import FieldChange, ObjectPlan, Plan, State, blocked, text_of
from outbox_pipeline.servers.topics import TopicState

KIND = "relay"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SetUpOptions:
    """How the relay should be set up."""

    shards: int
    notify: bool = True  # a trigger that wakes the workers; off: they poll
    archive: bool = False  # a history that `--mode archive` can move rows to


@dataclass(frozen=True, slots=True)
class Objects:
    """Which objects of the relay exist."""

    settings: bool
    batch: bool
    dead_letter: bool
    history: bool
    notify: bool
    shard_of: str | None  # the expression of the index as the server prints it
    index_valid: bool
    wakes: bool


def read(conn: psycopg.Connection[TupleRow], names: RelayNames) -> Objects:
    """Read which objects exist. One query on catalogs."""
    wanted = {
        field: names.qualified(getattr(names, field)).as_string(conn)
        for field in ("settings", "batch", "dead_letter", "history", "index")
    }
    wanted["notify"] = f"{names.qualified(names.notify).as_string(conn)}()"
    wanted["table"] = names.qualified(names.outbox).as_string(conn)
    with conn.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(statements.get("relay_read_objects"), wanted).fetchone()
    return Objects(**(row or {}))


def plan(conn: psycopg.Connection[TupleRow], definition: Definition, options: SetUpOptions) -> Plan:
    """Compare what the relay needs with what is there. Changes nothing. Raises Unreachable."""
    return Plan(tuple(look() for look, _ in _parts(conn, definition, options)))


def init(
    conn: psycopg.Connection[TupleRow], definition: Definition, options: SetUpOptions, *, say: Say
) -> Plan:
    """Make what is missing, one object at a time. Running it again changes nothing.

    Changes nothing while one is blocked. Raises Failed at the first object that cannot be made; what was
    made before it stays.
    """
    refuse_blocked(plan(conn, definition, options).objects)
    done = []
    for look, make in _parts(conn, definition, options):
        found = look()
        title = f"{found.kind} {found.name}"
        if found.state is State.BLOCKED:
            raise Failed(found.why, where=title, remedy=found.remedy)
        if found.state is not State.PRESENT:
            try:
                make(found)
            except psycopg.Error as error:
                problem = error.diag.message_primary or " ".join(str(error).split())
                raise Failed(problem, where=title, remedy="run it again to go on") from error
        say(f"{title}: {_DONE.get(found.state, 'present')}")
        done.append(found)
    return Plan(tuple(done))


_DONE: Final = {State.MISSING: "created", State.DIFFERENT: "changed"}
Part = tuple[Callable[[], ObjectPlan], Callable[[ObjectPlan], None]]


def _parts(
    conn: psycopg.Connection[TupleRow], definition: Definition, options: SetUpOptions
) -> Iterator[Part]:
    outbox, names = definition.outbox, relay_names(definition)

    def execute(planned: ObjectPlan) -> None:
        with conn.transaction():
            for statement in planned.sql:
                conn.execute(statement)

    def table() -> ObjectPlan:
        ours = admin_rights.read(conn, outbox.table.schema)
        return tables.plan(tables.read(conn, outbox.table), outbox, ours, datetime.now(UTC).date())

    yield table, execute
    for writer in outbox.writers:

        def grants(writer: str = writer) -> ObjectPlan:
            live = roles.read_grants(conn, writer, definition)
            return roles.plan_writer_grants(
                writer, live, definition, admin_rights.read(conn, outbox.table.schema)
            )

        yield grants, execute

    def objects() -> ObjectPlan:
        return plan_objects(read(conn, names), read_settings(conn, names), names, outbox, options)

    yield objects, execute
    own = progress_topic(definition, options.shards)
    for spec in [*definition.kafka.aggregates.values(), own]:

        def topic(spec: TopicSpec = spec) -> ObjectPlan:
            live = topics.inspect(definition.kafka, [spec.name])[spec.name]
            return _plan_own_topic(live, spec) if spec is own else event_topics.plan(live, spec)

        yield topic, partial(event_topics.carry_out, definition.kafka, spec)


def _plan_own_topic(live: TopicState | None, spec: TopicSpec) -> ObjectPlan:
    """Compare the progress topic with what it should be: nothing in it can be lost by a change."""
    planned = event_topics.plan(live, spec, add_partitions=True)
    if planned.state is State.BLOCKED:
        return replace(planned, state=State.DIFFERENT, why="", remedy="")
    return planned


def progress_topic(definition: Definition, shards: int) -> TopicSpec:
    """Say what the topic is whose partitions stand for shards: the newest record of each is what counts."""
    config = {"cleanup.policy": "compact", "segment.bytes": "16777216"}
    return TopicSpec(
        relay_names(definition).progress_topic, shards, definition.kafka.defaults.replication_factor, config
    )


def plan_objects(
    live: Objects, settings: tuple[str, int] | None, names: RelayNames, outbox: Outbox, options: SetUpOptions
) -> ObjectPlan:
    """Compare the relay's tables, index and trigger with the options. Pure."""
    name = f"{names.schema}.{names.settings}"
    if settings is not None and settings != (names.pipeline, options.shards):
        return _other_settings(name, settings, names, options)
    if live.shard_of is not None and _bare(live.shard_of) != _bare(shard_of(options.shards).as_string(None)):
        return blocked(
            KIND,
            name,
            f"index {names.index} does not follow {options.shards} shards",
            f"stop the relay, DROP INDEX {names.schema}.{names.index}, and run relay --init again",
        )
    missing = tuple(_missing(live, settings, outbox, options))
    if not missing:
        return ObjectPlan(KIND, name, State.PRESENT)
    values = dict(identifiers(names, outbox, options.shards))
    values |= {"channel": sql.Literal(names.channel), "shard_of": shard_of(options.shards)}
    found = tuple(sql.SQL(statements.get(statement)).format(**values) for _, statement in missing)
    changes = tuple(FieldChange(what, "missing", "present") for what, _ in missing)
    return ObjectPlan(KIND, name, State.MISSING, changes=changes, statement=text_of(found), sql=found)


def _missing(
    live: Objects, settings: tuple[str, int] | None, outbox: Outbox, options: SetUpOptions
) -> Iterator[tuple[str, LiteralString]]:
    wanted: tuple[tuple[bool, str, tuple[LiteralString, ...]], ...] = (
        (live.settings, "table of settings", ("relay_create_settings",)),
        (settings is not None, "settings", ("relay_write_settings",)),
        (live.batch, "table of batches", ("relay_create_batch",)),
        (live.dead_letter, "dead letters", ("relay_create_dead_letter", "relay_create_blocking_index")),
        (live.shard_of is not None, "index", ("relay_create_index",)),
        (live.notify or not options.notify, "wake-up function", ("relay_create_notify_function",)),
        (live.wakes or not options.notify, "wake-up trigger", ("relay_create_notify_trigger",)),
        (
            live.history or not options.archive,
            "history",
            ("relay_create_history", "relay_create_history_default"),
        ),
    )
    for there, what, names in wanted:
        if not there:
            yield from ((what, name) for name in names)


def _other_settings(
    name: str, settings: tuple[str, int], names: RelayNames, options: SetUpOptions
) -> ObjectPlan:
    pipeline, shards = settings
    if pipeline != names.pipeline:
        return blocked(
            KIND,
            name,
            f"outbox {names.schema}.{names.outbox} is relayed by pipeline {pipeline}",
            "give this pipeline an outbox of its own",
        )
    return blocked(
        KIND,
        name,
        f"is set up with {shards} shards, not {options.shards}",
        "leave out --shards: changing the number would let two workers read one aggregate",
    )


def _bare(expression: str) -> str:
    """Strip what PostgreSQL adds when it prints an expression."""
    return "".join(char for char in expression.lower().replace("::text", "") if char not in " ()")
