"""Take a pipeline away again: exactly what the definition names, in the order that frees the next thing.

What cannot be ours stays: a slot of another plug-in or database, a publication that publishes other
tables too, a role that somebody else depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_pipeline import sql as statements
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.errors import Failed, Refused, Unreachable
from outbox_pipeline.ids import publisher
from outbox_pipeline.provision import (
    debezium_connector,
    event_topics,
    exclusive,
    preflight,
    publications,
    roles,
    tables,
)
from outbox_pipeline.servers import admin_rights, slots, topics
from outbox_pipeline.servers.positions import PLUGIN
from outbox_pipeline.servers.postgres import server_major

CONNECT, KAFKA = "connect", "kafka"  # what can be skipped
HOLDS_EVENTS = "it holds events; --data removes it"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Removal:
    """One object of the pipeline: removed, kept (why), or not there at all."""

    kind: str
    name: str
    action: str  # remove, keep, absent; removed once it is done
    why: str = ""

    @property
    def removes(self) -> bool:
        """Tell whether there is something to do."""
        return self.action == "remove"

    def document(self) -> dict[str, Any]:
        """Show it as JSON."""
        return {"kind": self.kind, "name": self.name, "action": self.action, "why": self.why}


@dataclass(frozen=True, slots=True)
class RemovalStep:
    """An object: what would happen to it, and how it is removed."""

    look: Callable[[], Removal]
    remove: Callable[[], None]


def plan(
    conn: psycopg.Connection[TupleRow],
    client: ConnectClient,
    definition: Definition,
    *,
    data: bool,
    skip: Collection[str] = (),
) -> tuple[Removal, ...]:
    """List what would be removed and what would stay. Changes nothing.

    `skip` names systems that are not asked and whose objects stay: CONNECT, KAFKA.
    """
    return tuple(part.look() for part in _parts(conn, client, definition, data, skip))


def check(conn: psycopg.Connection[TupleRow], definition: Definition, removals: Iterable[Removal]) -> None:
    """Raise Refused where this role may not remove what would be removed. Changes nothing."""
    ours = admin_rights.read(conn, definition.outbox.table.schema)
    goes = {removal.kind for removal in removals if removal.removes}
    if slots.KIND in goes:
        preflight.slot_rights(conn, definition)
    publication = publications.read(conn, definition.postgres.publication)
    table = tables.read(conn, definition.outbox.table)
    for kind, name, allowed in (
        (publications.KIND, definition.postgres.publication, publication is None or publication.ours),
        (roles.KIND, definition.postgres.connector.user, ours.superuser or ours.createrole),
        (tables.KIND, str(definition.outbox.table), table is None or table.ours),
    ):
        if kind in goes and not allowed:
            raise Refused(
                f"{ours.role} may not drop it, so nothing was removed",
                where=f"{kind} {name}",
                remedy="run with the role that owns it, or with a superuser",
            )


def destroy(
    conn: psycopg.Connection[TupleRow],
    client: ConnectClient,
    definition: Definition,
    *,
    data: bool,
    say: Say,
    skip: Collection[str] = (),
) -> tuple[Removal, ...]:
    """Remove the pipeline; the table and the topics only with `data`, and without what `skip` names.

    Holds the pipeline's lock. Looks at everything before it removes anything. May be run again after any
    interruption. Raises Refused where the rights do not suffice, and at the first object that cannot be
    removed.
    """
    with exclusive.hold(conn, definition.pipeline, say=say):
        check(conn, definition, plan(conn, client, definition, data=data, skip=skip))
        return tuple(_settle(part, say) for part in _parts(conn, client, definition, data, skip))


def _settle(part: RemovalStep, say: Say) -> Removal:
    found = part.look()
    title = f"{found.kind} {found.name}"
    if not found.removes:
        say(f"{title}: {found.action}{f', {found.why}' if found.why else ''}")
        return found
    try:
        part.remove()
    except psycopg.errors.DependentObjectsStillExist as error:
        why = " ".join((error.diag.message_detail or str(error)).split())
        say(f"{title}: keep, {why}")
        return Removal(found.kind, found.name, "keep", why)
    except psycopg.Error as error:
        raise Failed(error.diag.message_primary or str(error), where=title) from error
    say(f"{title}: removed")
    return Removal(found.kind, found.name, "removed")


def _parts(
    conn: psycopg.Connection[TupleRow],
    client: ConnectClient,
    definition: Definition,
    data: bool,
    skip: Collection[str],
) -> Iterator[RemovalStep]:
    connector = RemovalStep(
        partial(_connector, client, definition), partial(_remove_connector, client, definition)
    )
    yield _unless_skipped(connector, skip, CONNECT, debezium_connector.KIND, definition.connect.connector)
    yield RemovalStep(partial(_slot, conn, definition), partial(_remove_slot, conn, definition))
    yield RemovalStep(partial(_publication, conn, definition), partial(_remove_publication, conn, definition))
    yield RemovalStep(partial(_role, conn, definition), partial(_remove_role, conn, definition))
    for spec in event_topics.specs(definition):
        topic = RemovalStep(
            partial(_topic, definition, spec.name, data), partial(event_topics.remove, definition, spec.name)
        )
        yield _unless_skipped(topic, skip, KAFKA, event_topics.KIND, spec.name)
    yield RemovalStep(partial(_table, conn, definition, data), partial(_remove_table, conn, definition))


def _unless_skipped(
    part: RemovalStep, skip: Collection[str], system: str, kind: str, name: str
) -> RemovalStep:
    """Leave a part of a system alone that is skipped; say how to skip it where it does not answer."""

    def look() -> Removal:
        if system in skip:
            return Removal(kind, name, "keep", f"--skip {system}")
        try:
            return part.look()
        except Unreachable as error:
            remedy = f"{error.remedy}; where it is gone for good: destroy --skip {system}"
            raise Unreachable(error.problem, where=error.where, remedy=remedy) from error

    return RemovalStep(look, part.remove)


def _found(kind: str, name: str, exists: bool, keep: str = "") -> Removal:
    if not exists:
        return Removal(kind, name, "absent")
    return Removal(kind, name, "keep" if keep else "remove", keep)


def _connector(client: ConnectClient, definition: Definition) -> Removal:
    name = definition.connect.connector
    config = client.config(name)
    keep = ""
    if config is not None and config.get("slot.name") != definition.postgres.slot:
        keep = f"it reads slot {config.get('slot.name')}, not {definition.postgres.slot}"
    return _found(debezium_connector.KIND, name, config is not None, keep)


def _remove_connector(client: ConnectClient, definition: Definition) -> None:
    name = definition.connect.connector
    client.stop(name)
    client.reset_offsets(name)  # else a connector of that name would resume where this one ended
    client.delete(name)


def _slot(conn: psycopg.Connection[TupleRow], definition: Definition) -> Removal:
    name = definition.postgres.slot
    live = slots.read(conn, name)
    keep = ""
    if live is not None and (live.plugin, live.database) != (
        PLUGIN,
        definition.postgres.connector.database,
    ):
        keep = f"it is for {live.plugin or live.kind} in database {live.database}"
    return _found(slots.KIND, name, live is not None, keep)


def _remove_slot(conn: psycopg.Connection[TupleRow], definition: Definition) -> None:
    publisher.note_connector(conn, definition, "the connector is being destroyed")
    slots.drop(conn, definition.postgres.slot)


def _publication(conn: psycopg.Connection[TupleRow], definition: Definition) -> Removal:
    live = publications.read(conn, definition.postgres.publication)
    others = "" if live is None else publications.others(live, definition)
    keep = f"it publishes {others} too" if others else ""
    return _found(publications.KIND, definition.postgres.publication, live is not None, keep)


def _remove_publication(conn: psycopg.Connection[TupleRow], definition: Definition) -> None:
    name = sql.Identifier(definition.postgres.publication)
    conn.execute(sql.SQL(statements.get("drop_publication")).format(publication=name))


def _role(conn: psycopg.Connection[TupleRow], definition: Definition) -> Removal:
    name = definition.postgres.connector.user
    live = roles.read_role(conn, name)
    keep = ""
    if live is not None and (live.superuser or name == conn.info.user):
        keep = "it is an administrator"
    elif name in definition.outbox.writers:
        keep = "it writes the outbox"
    return _found(roles.KIND, name, live is not None, keep)


def _remove_role(conn: psycopg.Connection[TupleRow], definition: Definition) -> None:
    """Take our grants back and drop the role; both or, where others depend on it, neither."""
    names = {
        "role": sql.Identifier(definition.postgres.connector.user),
        "database": sql.Identifier(definition.postgres.connector.database),
        "schema": sql.Identifier(definition.outbox.table.schema),
        "table": tables.identifier(definition.outbox.table),
    }
    table = tables.read(conn, definition.outbox.table)
    with conn.transaction():
        if table is not None:
            conn.execute(sql.SQL(statements.get("revoke_select")).format(**names))
            conn.execute(sql.SQL(statements.get("revoke_usage")).format(**names))
        conn.execute(sql.SQL(statements.get("revoke_connect")).format(**names))
        if definition.watch.ticker is None:  # the connector's own heartbeat was granted it
            taken = statements.get("take_messages_back", server_major(conn))
            conn.execute(sql.SQL(taken).format(**names))
        conn.execute(sql.SQL(statements.get("drop_role")).format(**names))


def _topic(definition: Definition, name: str, data: bool) -> Removal:
    live = topics.inspect(definition.kafka, [name])[name]
    return _found(event_topics.KIND, name, live is not None, "" if data else HOLDS_EVENTS)


def _table(conn: psycopg.Connection[TupleRow], definition: Definition, data: bool) -> Removal:
    live = tables.read(conn, definition.outbox.table)
    keep = "" if data else HOLDS_EVENTS
    return _found(tables.KIND, str(definition.outbox.table), live is not None, keep)


def _remove_table(conn: psycopg.Connection[TupleRow], definition: Definition) -> None:
    table = tables.identifier(definition.outbox.table)
    conn.execute(sql.SQL(statements.get("drop_outbox")).format(table=table))
    publisher.forget(conn, definition)
