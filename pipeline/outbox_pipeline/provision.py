"""Bring a live system to what the definition says, one object at a time, and never take anything away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial

import psycopg
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_connectors.errors import Failed
from outbox_pipeline import publications, rights, roles, server, slots, tables
from outbox_pipeline.plan import ObjectPlan, State

Say = Callable[[str], None]
Look = Callable[[], ObjectPlan]


def postgres_objects(conn: psycopg.Connection[TupleRow], definition: Definition) -> Iterator[Look]:
    """Name the objects in PostgreSQL in the order in which they are made, each as a look at how it stands.

    A look reads the live state when it is called, so an object sees what the ones before it made.
    """
    for look in (_server, _role, _table, _connector_grants):
        yield partial(look, conn, definition)
    for writer in definition.outbox.writers:
        yield partial(_writer_grants, conn, definition, writer)
    for look in (_publication, _slot):
        yield partial(look, conn, definition)


def apply_postgres(
    conn: psycopg.Connection[TupleRow], definition: Definition, *, say: Say = lambda _: None
) -> tuple[ObjectPlan, ...]:
    """Make what is missing in PostgreSQL and mend what can safely be mended.

    `conn` is in autocommit mode and connected to the connector's database. Each object is one
    transaction. Returns what was done, in order. Raises Failed at the first object that cannot be
    made; the ones before it stay.
    """
    return tuple(
        planned
        for look in postgres_objects(conn, definition)
        if (planned := _apply(conn, look, say)).state is not State.PRESENT
    )


def _apply(conn: psycopg.Connection[TupleRow], look: Look, say: Say) -> ObjectPlan:
    planned = look()
    if planned.state is State.PRESENT:
        return planned
    if planned.state is State.BLOCKED:
        raise Failed(planned.why, where=f"{planned.kind} {planned.name}", remedy=planned.remedy)
    say(f"{planned.kind} {planned.name}: {planned.state}")
    if len(planned.sql) == 1:
        conn.execute(planned.sql[0])
    else:
        with conn.transaction():
            for statement in planned.sql:
                conn.execute(statement)
    return planned


def _server(conn: psycopg.Connection[TupleRow], definition: Definition) -> ObjectPlan:
    slot = slots.read(conn, definition.postgres.slot)
    return server.plan(
        server.read(conn), slot_exists=slot is not None, slot_active=slot is not None and slot.active
    )


def _rights(conn: psycopg.Connection[TupleRow], definition: Definition) -> rights.Rights:
    return rights.read(conn, definition.outbox.table.schema)


def _role(conn: psycopg.Connection[TupleRow], definition: Definition) -> ObjectPlan:
    ours = _rights(conn, definition)
    user = definition.postgres.connector.user
    stored = roles.read_verifier(conn, user) if ours.superuser else None
    return roles.plan_role(roles.read_role(conn, user), stored, definition, ours)


def _table(conn: psycopg.Connection[TupleRow], definition: Definition) -> ObjectPlan:
    return tables.plan(
        tables.read(conn, definition.outbox.table),
        definition.outbox,
        _rights(conn, definition),
        datetime.now(UTC).date(),
    )


def _connector_grants(conn: psycopg.Connection[TupleRow], definition: Definition) -> ObjectPlan:
    live = roles.read_grants(conn, definition.postgres.connector.user, definition)
    return roles.plan_connector_grants(live, definition, _rights(conn, definition))


def _writer_grants(conn: psycopg.Connection[TupleRow], definition: Definition, writer: str) -> ObjectPlan:
    live = roles.read_grants(conn, writer, definition)
    return roles.plan_writer_grants(writer, live, definition, _rights(conn, definition))


def _publication(conn: psycopg.Connection[TupleRow], definition: Definition) -> ObjectPlan:
    ours = _rights(conn, definition)
    table = tables.read(conn, definition.outbox.table)
    return publications.plan(
        publications.read(conn, definition.postgres.publication),
        definition,
        ours,
        owns_table=table is None or table.ours,
    )


def _slot(conn: psycopg.Connection[TupleRow], definition: Definition) -> ObjectPlan:
    return slots.plan(slots.read(conn, definition.postgres.slot), definition, _rights(conn, definition))
