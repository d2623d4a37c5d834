"""The publication: which rows the slot hands out, and how it stands on a server.

`publish = 'insert'` keeps updates and deletes of the outbox working without a replica identity and
deletes (pruning) out of the stream. What a publication has beyond ours is never taken away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow, class_row

from outbox_connectors.definition import Definition, Partitioning
from outbox_pipeline import sql as statements
from outbox_pipeline.provision.tables import identifier
from outbox_pipeline.servers.admin_rights import Rights
from outbox_pipeline.servers.plan import FieldChange, ObjectPlan, State, blocked, text_of
from outbox_pipeline.servers.positions import PLUGIN
from outbox_pipeline.servers.postgres import server_major
from outbox_pipeline.servers.slots import LiveSlot, past_its_publication

KIND = "publication"


@dataclass(frozen=True, slots=True)
class LivePublication:
    """A publication as the server describes it."""

    owner: str
    ours: bool
    all_tables: bool
    inserts: bool
    updates: bool
    deletes: bool
    truncates: bool
    via_root: bool
    tables: Sequence[Mapping[str, Any]]
    schemas: Sequence[str]

    def operations(self) -> tuple[str, ...]:
        """Name the operations it publishes, as the `publish` parameter spells them."""
        flags = {
            "insert": self.inserts,
            "update": self.updates,
            "delete": self.deletes,
            "truncate": self.truncates,
        }
        return tuple(name for name, on in flags.items() if on)


def read(conn: psycopg.Connection[TupleRow], name: str) -> LivePublication | None:
    """Read a publication; None when there is none. One query on catalogs."""
    with conn.cursor(row_factory=class_row(LivePublication)) as cursor:
        return cursor.execute(
            statements.get("read_publication", server_major(conn)), {"name": name}
        ).fetchone()


def plan(
    live: LivePublication | None,
    definition: Definition,
    rights: Rights,
    *,
    owns_table: bool,
    slot: LiveSlot | None,
    now: datetime,
) -> ObjectPlan:
    """Compare a publication with the definition. Pure.

    `owns_table`: whether the current role owns the outbox table (or will, having created it). `slot`
    is there when the publication comes too late: then rows are lost to it, and a warning says which.
    """
    name = definition.postgres.publication
    if live is None:
        planned = _plan_missing(definition, rights, owns_table)
        return replace(planned, warnings=tuple(_late(planned, definition, rights.server_major, slot, now)))
    narrowed = _narrowing(live, definition)
    if narrowed is not None:
        return blocked(
            KIND,
            name,
            f"passes only some of the outbox on: {narrowed.field} {narrowed.have}",
            f"BEGIN; ALTER PUBLICATION {_quoted(name)} DROP TABLE {_table(definition)}; "
            f"ALTER PUBLICATION {_quoted(name)} ADD TABLE {_table(definition)}; COMMIT",
            changes=[narrowed],
        )
    mends = list(_mends(live, definition))
    warnings = tuple(_warnings(live, definition))
    if not mends:
        return ObjectPlan(KIND, name, State.PRESENT, warnings=warnings)
    changes, found = zip(*mends, strict=True)
    if not live.ours:
        return blocked(
            KIND,
            name,
            f"belongs to {live.owner}, so {rights.role} cannot change it",
            f"GRANT {_quoted(live.owner)} TO {_quoted(rights.role)}, or run as {live.owner}",
            changes=changes,
        )
    planned = ObjectPlan(KIND, name, State.DIFFERENT, changes=changes, statement=text_of(found), sql=found)
    late = _late(planned, definition, rights.server_major, slot, now)
    return replace(planned, warnings=(*warnings, *late))


def contains(live: LivePublication, definition: Definition) -> bool:
    """Tell whether inserts into the outbox are published, by name, by schema or by FOR ALL TABLES."""
    return (
        live.all_tables
        or definition.outbox.table.schema in live.schemas
        or _entry(live, definition) is not None
    )


def _plan_missing(definition: Definition, rights: Rights, owns_table: bool) -> ObjectPlan:
    name = definition.postgres.publication
    if not rights.create_in_database:
        database = _quoted(definition.postgres.connector.database)
        return blocked(
            KIND,
            name,
            f"{rights.role} may not create publications in this database",
            f"GRANT CREATE ON DATABASE {database} TO {_quoted(rights.role)}",
        )
    if not owns_table:
        return blocked(
            KIND,
            name,
            f"only the owner of {definition.outbox.table} may publish it, {rights.role} is not",
            f"ALTER TABLE {_table(definition)} OWNER TO {_quoted(rights.role)}",
        )
    text = "create_publication"
    if definition.outbox.partition is Partitioning.DAILY:
        text = "create_publication_via_root"
    found = (
        sql.SQL(statements.get(text)).format(
            publication=sql.Identifier(name), table=identifier(definition.outbox.table)
        ),
    )
    return ObjectPlan(KIND, name, State.MISSING, statement=text_of(found), sql=found)


def _late(
    planned: ObjectPlan, definition: Definition, major: int, slot: LiveSlot | None, now: datetime
) -> Iterator[str]:
    """Warn about rows that a slot older than this change of the publication does not deliver."""
    database = definition.postgres.connector.database
    if slot is None or slot.lost or (slot.plugin, slot.database) != (PLUGIN, database):
        return  # nothing reads the publication through it; what is wrong with the slot is its own part
    window = (
        f"rows of {definition.outbox.table} written from the moment publication {planned.name} went missing "
        f"(or stopped covering them) until {now:%Y-%m-%d %H:%M:%S} UTC"
    )
    again = "find them by occurred_at, compare with Kafka and send them again"
    if planned.state is State.MISSING and major <= 17:
        yield (
            f"slot {definition.postgres.slot} is older than the publication and stands at "
            f"{slot.confirmed_flush_lsn}: PostgreSQL {major} cannot decode {window}; if the connector stops "
            f"with 'publication does not exist': {past_its_publication(definition)}; then {again}"
        )
    else:
        yield f"slot {definition.postgres.slot} skips, without any error, {window}: {again}"


def _entry(live: LivePublication, definition: Definition) -> Mapping[str, Any] | None:
    table = definition.outbox.table
    found = (entry for entry in live.tables if (entry["schema"], entry["name"]) == (table.schema, table.name))
    return next(found, None)


def _narrowing(live: LivePublication, definition: Definition) -> FieldChange | None:
    entry = _entry(live, definition)
    if entry is None:
        return None
    if entry["filter"] is not None:
        return FieldChange("row filter", str(entry["filter"]), "none")
    if entry["columns"] is not None:
        return FieldChange("column list", f"columns number {entry['columns']}", "none")
    return None


def _mends(live: LivePublication, definition: Definition) -> Iterator[tuple[FieldChange, sql.Composed]]:
    publication = sql.Identifier(definition.postgres.publication)
    if not contains(live, definition):
        yield (
            FieldChange("tables", others(live, definition) or "none", str(definition.outbox.table)),
            sql.SQL(statements.get("add_table_to_publication")).format(
                publication=publication, table=identifier(definition.outbox.table)
            ),
        )
    if not live.inserts:
        operations = ", ".join(("insert", *live.operations()))
        yield (
            FieldChange("publish", ", ".join(live.operations()) or "nothing", operations),
            sql.SQL(statements.get("publish_operations")).format(
                publication=publication, operations=sql.Literal(operations)
            ),
        )
    if definition.outbox.partition is Partitioning.DAILY and not live.via_root:
        yield (
            FieldChange("publish_via_partition_root", "false", "true"),
            sql.SQL(statements.get("publish_via_root")).format(publication=publication),
        )


def others(live: LivePublication, definition: Definition) -> str:
    """Name what is published beside the outbox; empty when nothing is."""
    if live.all_tables:
        return "all tables"
    table = str(definition.outbox.table)
    named = [f"{entry['schema']}.{entry['name']}" for entry in live.tables]
    schemas = [f"all tables of schema {schema}" for schema in live.schemas]
    return ", ".join([*(name for name in named if name != table), *schemas])


def _warnings(live: LivePublication, definition: Definition) -> Iterator[str]:
    name, table = definition.postgres.publication, definition.outbox.table
    more = others(live, definition)
    if more:
        yield f"{name} publishes more than {table}: {more}; the slot decodes and sends all of it"
    if live.inserts and len(live.operations()) > 1:
        yield (
            f"{name} publishes {', '.join(live.operations())}: only insert is needed, and the rest makes the "
            "slot decode every pruned row"
        )


def _quoted(name: str) -> str:
    return sql.Identifier(name).as_string(None)


def _table(definition: Definition) -> str:
    return identifier(definition.outbox.table).as_string(None)
