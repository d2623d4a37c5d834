"""Bring a live system to what the definition says, one object at a time, and never take anything away."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

import psycopg
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_pipeline import sql as statements
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.errors import Failed, OutboxError, Refused, Unreachable
from outbox_pipeline.ids import publisher
from outbox_pipeline.provision import (
    background,
    debezium_connector,
    event_topics,
    exclusive,
    message_rights,
    publications,
    roles,
    server,
    tables,
)
from outbox_pipeline.servers import admin_rights, slots, topics, trust
from outbox_pipeline.servers.plan import ObjectPlan, Plan, State, blocked
from outbox_pipeline.servers.postgres import server_major
from outbox_pipeline.servers.topics import TopicState

Say = Callable[[str], None]

LOCK_TIMEOUT_SECONDS = 10.0  # how long DDL queues for a lock, with every writer queueing behind it
_ABROAD = (event_topics.KIND, debezium_connector.KIND)  # outside of PostgreSQL; the last ones, in this order
SLOT_TIMEOUT_SECONDS = 120.0  # how long a new slot waits for a transaction that is open


@dataclass(frozen=True, slots=True)
class ProvisioningStep:
    """An object of the pipeline: how to look at it, and how to make it as planned."""

    kind: str
    name: str
    look: Callable[[], ObjectPlan]
    make: Callable[[ObjectPlan], None]
    look_again: Callable[[], ObjectPlan] | None = None  # what to ask after `make`, where not `look`


def parts(
    conn: psycopg.Connection[TupleRow],
    client: ConnectClient,
    definition: Definition,
    *,
    add_partitions: bool = False,
    say: Say = lambda _: None,
) -> Iterator[ProvisioningStep]:
    """List the objects of a pipeline in the order in which they are made.

    A part looks at the live state when it is asked, so it sees what the parts before it made.
    """
    major = server_major(conn)
    yield from postgres_parts(conn, definition, say=say)
    yield from _topic_parts(definition, add_partitions)
    yield ProvisioningStep(
        debezium_connector.KIND,
        definition.connect.connector,
        partial(debezium_connector.look, client, definition, major),
        lambda _: debezium_connector.make(client, definition, major),
        # Whether its task comes up takes time to show; `proof` waits for that.
        partial(debezium_connector.look, client, definition, major, registered_only=True),
    )


def postgres_parts(
    conn: psycopg.Connection[TupleRow], definition: Definition, *, say: Say = lambda _: None
) -> Iterator[ProvisioningStep]:
    """List the objects in PostgreSQL in the order in which they are made."""
    user, table = definition.postgres.connector.user, str(definition.outbox.table)
    execute = partial(_execute, conn)
    yield ProvisioningStep(server.KIND, "PostgreSQL", partial(_server, conn, definition), execute)
    yield ProvisioningStep(roles.KIND, user, partial(_role, conn, definition), execute)
    yield ProvisioningStep(tables.KIND, table, partial(_table, conn, definition), execute)
    yield ProvisioningStep(roles.GRANTS, user, partial(_connector_grants, conn, definition), execute)
    for writer in definition.outbox.writers:
        yield ProvisioningStep(
            roles.GRANTS, writer, partial(_writer_grants, conn, definition, writer), execute
        )
    yield ProvisioningStep(
        message_rights.KIND, message_rights.NAME, partial(_message_rights, conn, definition), execute
    )
    name = definition.postgres.publication
    yield ProvisioningStep(publications.KIND, name, partial(_publication, conn, definition), execute)
    make_slot = partial(_make_slot, conn, definition, say)
    yield ProvisioningStep(slots.KIND, definition.postgres.slot, partial(_slot, conn, definition), make_slot)


def _topic_parts(definition: Definition, add_partitions: bool) -> Iterator[ProvisioningStep]:
    """List the topics. The first look describes all of them in one go, each later one its own."""
    wanted = {spec.name: spec for spec in event_topics.specs(definition)}
    described: dict[str, TopicState | None] = {}
    fresh = True

    def look(name: str) -> ObjectPlan:
        nonlocal fresh
        if name not in described:
            described.update(topics.inspect(definition.kafka, wanted if fresh else [name]))
            fresh = False
        return event_topics.plan(described.pop(name), wanted[name], add_partitions=add_partitions)

    for name in wanted:
        yield ProvisioningStep(
            event_topics.KIND, name, partial(look, name), partial(event_topics.make, definition)
        )


def plan(
    conn: psycopg.Connection[TupleRow],
    client: ConnectClient,
    definition: Definition,
    *,
    add_partitions: bool = False,
) -> Plan:
    """Look at every object and say what differs, and whether somebody keeps the slot moving."""
    found = look(conn, client, definition, add_partitions=add_partitions)
    if definition.watch.ticker is None or slots.ticking(conn):
        return found
    return Plan(tuple(_unticked(one) if one.kind == slots.KIND else one for one in found.objects))


def look(
    conn: psycopg.Connection[TupleRow],
    client: ConnectClient,
    definition: Definition,
    *,
    add_partitions: bool = False,
) -> Plan:
    """Look at every object and say what differs. Changes nothing.

    Asks PostgreSQL, Kafka and Connect side by side, so that one that is silent costs its time-out and no
    more. Where Kafka or Connect does not answer, their objects are blocked with the reason (`unseen`).
    """
    todo = tuple(parts(conn, client, definition, add_partitions=add_partitions))
    abroad = [
        background.start(partial(_look_from_afar, [part for part in todo if part.kind == kind]))
        for kind in _ABROAD
    ]
    found = [part.look() for part in todo if part.kind not in _ABROAD]
    return Plan((*found, *(planned for looked in abroad for planned in looked.result())))


def _look_from_afar(todo: Sequence[ProvisioningStep]) -> tuple[ObjectPlan, ...]:
    """Look at the objects of one system; when it does not answer, it is not asked again for the others."""
    found: list[ObjectPlan] = []
    silent: Unreachable | None = None
    for part in todo:
        if silent is None:
            try:
                found.append(part.look())
                continue
            except Unreachable as error:
                silent = error
        found.append(_unseen(part, silent))
    return tuple(found)


def _unticked(planned: ObjectPlan) -> ObjectPlan:
    warning = (
        "nobody sends the heartbeat, so an idle slot stands still: run outboxctl watch as a service, which "
        "sends none to a connector that apply did not make"
    )
    return replace(planned, warnings=(*planned.warnings, warning))


def apply(
    conn: psycopg.Connection[TupleRow],
    client: ConnectClient,
    definition: Definition,
    *,
    say: Say,
    add_partitions: bool = False,
) -> Plan:
    """Make what is missing and mend what can safely be mended, one object at a time.

    Holds the pipeline's lock. Returns the objects as they were found before each was made. Changes
    nothing while a relay publishes the outbox, or where `check` raises. Raises at the first object that
    cannot be made; what was made before it stays, and applying again goes on from there.
    """
    with exclusive.hold(conn, definition.pipeline, say=say):
        publisher.refuse_second(conn, definition)
        check(conn, client, definition, add_partitions=add_partitions)
        _limit_locks(conn, LOCK_TIMEOUT_SECONDS)
        todo = parts(conn, client, definition, add_partitions=add_partitions, say=say)
        return Plan(tuple(_settle(part, say) for part in todo))


def apply_postgres(
    conn: psycopg.Connection[TupleRow], definition: Definition, *, say: Say = lambda _: None
) -> Plan:
    """Make the PostgreSQL side only: role, table, grants, publication, slot. As `apply` otherwise.

    `conn` is in autocommit mode and connected to the connector's database.
    """
    with exclusive.hold(conn, definition.pipeline, say=say):
        _limit_locks(conn, LOCK_TIMEOUT_SECONDS)
        return Plan(tuple(_settle(part, say) for part in postgres_parts(conn, definition, say=say)))


def check(
    conn: psycopg.Connection[TupleRow],
    client: ConnectClient,
    definition: Definition,
    *,
    add_partitions: bool = False,
    mended: Callable[[ObjectPlan], bool] = lambda _: False,
    error: type[OutboxError] = Failed,
) -> None:
    """Raise where `apply` could not go through to its end. Changes nothing.

    A connector that somebody has stopped does not count: all else is made, and it is left to that person.
    Raises `error` with every object that is blocked, but for those that the caller will have `mended` before;
    Refused where the connector works and was not made from this definition, or where its restart could lose
    rows; Failed where Connect refuses the configuration (asked once the connector's role and table are there,
    since Connect logs in); and Unreachable.
    """
    found = look(conn, client, definition, add_partitions=add_partitions)
    left = (one for one in found.objects if not debezium_connector.halted(one) and not mended(one))
    refuse_blocked(left, error)
    missing = {planned.kind for planned in found.objects if planned.state is State.MISSING}
    if not missing & {roles.KIND, tables.KIND}:
        debezium_connector.check(client, definition, server_major(conn))


def refuse_blocked(objects: Iterable[ObjectPlan], error: type[OutboxError] = Failed) -> None:
    """Raise with everything that stands in the way, so that nothing is made in vain before it is found."""
    found = [planned for planned in objects if planned.state is State.BLOCKED]
    if found:
        first, others = found[0], [f"{planned.kind} {planned.name}: {planned.why}" for planned in found[1:]]
        also = f" (also {'; '.join(others)})" if others else ""
        kind = Unreachable if first.unseen else Refused if first.guarded else error
        raise kind(first.why + also, where=f"{first.kind} {first.name}", remedy=first.remedy)


def _unseen(part: ProvisioningStep, error: OutboxError) -> ObjectPlan:
    why = f"could not be looked at: {error.where + ': ' if error.where else ''}{error.problem}"
    return blocked(part.kind, part.name, why, error.remedy, unseen=True)


def _settle(part: ProvisioningStep, say: Say) -> ObjectPlan:
    """Bring one object to its wanted state, and look again whether it is there."""
    found = part.look()
    title = f"{found.kind} {found.name}"
    for warning in found.warnings:
        say(f"warning: {warning}")
    if found.state is State.PRESENT:
        say(f"{title}: present")
        return found
    if found.state is State.BLOCKED:
        raise Failed(found.why, where=title, remedy=found.remedy)
    try:
        part.make(found)
    except psycopg.Error as error:
        if part.look().state is not State.PRESENT:  # somebody else may have made it at the same moment
            raise _failed(error, title) from error
    after = (part.look_again or part.look)()
    if after.state is not State.PRESENT:
        fields = ", ".join(f"{change.field} is {change.have}" for change in after.changes) or after.why
        raise Failed(f"is still {after.state} after the change: {fields}", where=title)
    say(f"{title}: {'created' if found.state is State.MISSING else 'changed'}")
    return found


def _failed(error: psycopg.Error, where: str) -> OutboxError:
    problem = error.diag.message_primary or " ".join(str(error).split())
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        return Unreachable(f"the connection broke: {problem}", where=where, remedy="apply again to go on")
    remedy = "apply again to go on"
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        remedy = "run with a role that may, or have a DBA run the output of outboxctl plan --sql"
    if isinstance(error, psycopg.errors.LockNotAvailable):
        problem = f"another session holds a lock ({problem})"
        remedy = "wait for or end that session, then apply again"
    return Failed(problem, where=where, remedy=remedy)


def _execute(conn: psycopg.Connection[TupleRow], planned: ObjectPlan) -> None:
    """Run the statements of an object in one transaction, so that an interruption leaves all or nothing."""
    with conn.transaction():
        for statement in planned.sql:
            conn.execute(statement)


def _limit_locks(conn: psycopg.Connection[TupleRow], seconds: float) -> None:
    conn.execute(statements.get("set_lock_timeout"), {"milliseconds": str(int(seconds * 1000))})


def _make_slot(
    conn: psycopg.Connection[TupleRow], definition: Definition, say: Say, planned: ObjectPlan
) -> None:
    """Create the slot, outside a transaction because it must wait for every open one."""
    if planned.state is State.DIFFERENT:
        slots.set_failover(definition)
        return
    open_ones = slots.open_writers(conn)
    if open_ones:
        say(
            f"slot {planned.name}: waits for {len(open_ones)} open transactions, the oldest is {open_ones[0]}"
        )
    _limit_locks(conn, SLOT_TIMEOUT_SECONDS)
    try:
        conn.execute(planned.sql[0])
    except psycopg.errors.LockNotAvailable as error:
        oldest = next(iter(slots.open_writers(conn)), "a transaction that has just ended")
        raise Failed(
            f"cannot be created while {oldest} is open",
            where=f"slot {planned.name}",
            remedy="end that transaction, then apply again",
        ) from error
    finally:
        if not conn.closed:
            _limit_locks(conn, LOCK_TIMEOUT_SECONDS)


def _server(conn: psycopg.Connection[TupleRow], definition: Definition) -> ObjectPlan:
    slot = slots.read(conn, definition.postgres.slot)
    active = slot is not None and slot.active
    return server.plan(server.read(conn), slot_exists=slot is not None, slot_active=active)


def _rights(conn: psycopg.Connection[TupleRow], definition: Definition) -> admin_rights.Rights:
    return admin_rights.read(conn, definition.outbox.table.schema)


def _role(conn: psycopg.Connection[TupleRow], definition: Definition) -> ObjectPlan:
    ours, user = _rights(conn, definition), definition.postgres.connector.user
    stored = roles.read_verifier(conn, user) if ours.superuser else None
    return roles.plan_role(roles.read_role(conn, user), stored, definition, ours)


def _table(conn: psycopg.Connection[TupleRow], definition: Definition) -> ObjectPlan:
    if found := trust.of_outbox(conn, definition.outbox.table):
        return tables.not_trusted(definition.outbox, found[0])
    live, today = tables.read(conn, definition.outbox.table), datetime.now(UTC).date()
    taken = tables.days_in_default(conn, live, definition.outbox, today)
    return tables.plan(live, definition.outbox, _rights(conn, definition), today, taken)


def _connector_grants(conn: psycopg.Connection[TupleRow], definition: Definition) -> ObjectPlan:
    live = roles.read_grants(conn, definition.postgres.connector.user, definition)
    return roles.plan_connector_grants(live, definition, _rights(conn, definition))


def _writer_grants(conn: psycopg.Connection[TupleRow], definition: Definition, writer: str) -> ObjectPlan:
    live = roles.read_grants(conn, writer, definition)
    return roles.plan_writer_grants(writer, live, definition, _rights(conn, definition))


def _message_rights(conn: psycopg.Connection[TupleRow], definition: Definition) -> ObjectPlan:
    return message_rights.plan(message_rights.read(conn, definition), definition, _rights(conn, definition))


def _publication(conn: psycopg.Connection[TupleRow], definition: Definition) -> ObjectPlan:
    table = tables.read(conn, definition.outbox.table)
    return publications.plan(
        publications.read(conn, definition.postgres.publication),
        definition,
        _rights(conn, definition),
        owns_table=table is None or table.ours,
        slot=slots.read(conn, definition.postgres.slot),
        now=datetime.now(UTC),
    )


def _slot(conn: psycopg.Connection[TupleRow], definition: Definition) -> ObjectPlan:
    live = slots.read(conn, definition.postgres.slot)
    published = publications.read(conn, definition.postgres.publication) is not None
    obstacle = slots.undecodable(conn, live, definition) if published else ""
    return slots.plan(live, definition, _rights(conn, definition), obstacle=obstacle)
