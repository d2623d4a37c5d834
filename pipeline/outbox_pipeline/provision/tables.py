"""The outbox table: its DDL, how it stands on a server, and what may safely be changed.

Safe is what no writer can notice: a nullable column, the trigger, storage parameters, a partition.
Everything else that differs is blocked with the statement a person would have to run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow, class_row

from outbox_connectors import record
from outbox_connectors.definition import Outbox, Partitioning, Payload, TableName
from outbox_pipeline import sql as statements
from outbox_pipeline.servers.admin_rights import Rights
from outbox_pipeline.servers.plan import ChangeKind, FieldChange, ObjectPlan, State, blocked, text_of
from outbox_pipeline.servers.trust import Untrusted

KIND = "table"
TRIGGER = "keep_copy_rows_apart"
DAYS_AHEAD = 7  # partitions that exist before they are needed

_TYPE_NAMES = {"timestamptz": "timestamp with time zone"}  # as format_type() spells them
_CHECK = re.compile(r"CONSTRAINT (\w+) (CHECK \(.*?\))(?=,\n|\n\))", re.DOTALL)
_OPTION = re.compile(r"(autovacuum_\w+) = ([\d.]+)")


@dataclass(frozen=True, slots=True)
class LiveTable:
    """A table as the server describes it."""

    kind: str
    owner: str
    ours: bool
    options: Sequence[str]
    partition_key: str | None
    columns: Sequence[Mapping[str, Any]]
    primary_key: Sequence[str]
    checks: Mapping[str, str]
    row_triggers: Mapping[str, bool]  # BEFORE INSERT FOR EACH ROW: name -> enabled
    partitions: Mapping[str, Mapping[str, Any]]


def read(conn: psycopg.Connection[TupleRow], table: TableName) -> LiveTable | None:
    """Read the shape of a table; None when there is none. One query on catalogs."""
    with conn.cursor(row_factory=class_row(LiveTable)) as cursor:
        query = statements.get("read_outbox_table")
        return cursor.execute(query, {"schema": table.schema, "name": table.name}).fetchone()


def identifier(table: TableName) -> sql.Identifier:
    """Quote a table's name."""
    return sql.Identifier(table.schema, table.name)


def days_in_default(
    conn: psycopg.Connection[TupleRow], live: LiveTable | None, outbox: Outbox, today: date
) -> frozenset[str]:
    """Name the days from today on that can get no partition, because the default one has rows of them."""
    name = f"{outbox.table.name}_default"
    if live is None or not live.ours or name not in live.partitions:
        return frozenset()
    query = sql.SQL(statements.get("read_days_in_default_partition")).format(
        table=sql.Identifier(outbox.table.schema, name)
    )
    return frozenset(day for (day,) in conn.execute(query, {"first": datetime.combine(today, time(), UTC)}))


def plan(
    live: LiveTable | None,
    outbox: Outbox,
    rights: Rights,
    today: date,
    taken: frozenset[str] = frozenset(),
) -> ObjectPlan:
    """Compare a table with the definition. Pure. `taken` is what `days_in_default` found."""
    if live is None:
        return _plan_missing(outbox, rights, today)
    unsafe = [*_shape(live, outbox), *_columns(live, outbox), *_checks(live, outbox)]
    if unsafe:
        changes, remedies = zip(*unsafe, strict=True)
        return blocked(
            KIND,
            str(outbox.table),
            f"exists with another shape: {_listed(changes)}",
            _remedy(remedies),
            changes=changes,
        )
    mends = list(_mends(live, outbox, today, taken))
    warnings = tuple(
        f"rows of {day} are in {outbox.table.name}_default, so that day gets no partition of its own: "
        f"apply at least every {DAYS_AHEAD} days"
        for day in sorted(taken)
    )
    if not mends:
        return ObjectPlan(KIND, str(outbox.table), State.PRESENT, warnings=warnings)
    changes, found = zip(*mends, strict=True)
    if not live.ours:
        return blocked(
            KIND,
            str(outbox.table),
            f"belongs to {live.owner}, so {rights.role} cannot change it",
            f"GRANT {_quoted(live.owner)} TO {_quoted(rights.role)}, or run as {live.owner}",
            changes=changes,
        )
    return replace(_object(outbox, State.DIFFERENT, tuple(found), changes), warnings=warnings)


def not_trusted(outbox: Outbox, found: Untrusted) -> ObjectPlan:
    """Block a table that would run the code of a role that is not trusted, itself or one beside it."""
    own = found.object == str(outbox.table)
    return blocked(
        KIND, str(outbox.table), found.why if own else f"{found.object}: {found.why}", found.remedy
    )


def ddl(outbox: Outbox, today: date) -> tuple[sql.Composed, ...]:
    """Write the statements that create the table, its trigger, parameters and partitions."""
    created = _create(outbox)
    trigger = sql.SQL(statements.get("create_copy_trigger")).format(table=identifier(outbox.table))
    if outbox.partition is Partitioning.NONE:
        return created, trigger, _autovacuum(outbox.table)
    partitions = [
        statement
        for name in expected_partitions(outbox, today)
        for statement in (_partition(outbox, name), _autovacuum(TableName(outbox.table.schema, name)))
    ]
    return created, trigger, *partitions


def _create(outbox: Outbox) -> sql.Composed:
    daily = outbox.partition is Partitioning.DAILY
    binary = outbox.payload is Payload.BYTEA
    return sql.SQL(statements.get("create_outbox")).format(
        table=identifier(outbox.table),
        primary_key=sql.SQL(", ").join(map(sql.Identifier, _primary_key(outbox))),
        partition_by=sql.SQL("PARTITION BY RANGE (occurred_at)" if daily else ""),
        payload_type=sql.SQL("bytea" if binary else "jsonb"),
        payload_on_the_wire=sql.SQL("payload" if binary else "payload::text"),
        aggregate_type_pattern=sql.Literal(record.AGGREGATE_TYPE_PATTERN),
        max_aggregate_type=sql.Literal(record.MAX_AGGREGATE_TYPE),
        max_aggregate_id=sql.Literal(record.MAX_AGGREGATE_ID),
        max_event_type=sql.Literal(record.MAX_EVENT_TYPE),
        max_trace_text=sql.Literal(record.MAX_TRACE_TEXT),
        max_headers_bytes=sql.Literal(record.MAX_HEADERS_BYTES),
        max_payload_bytes=sql.Literal(record.MAX_PAYLOAD_BYTES),
    )


def _autovacuum(table: TableName) -> sql.Composed:
    return sql.SQL(statements.get("set_outbox_autovacuum")).format(table=identifier(table))


def _plan_missing(outbox: Outbox, rights: Rights, today: date) -> ObjectPlan:
    schema, role = _quoted(outbox.table.schema), _quoted(rights.role)
    if not rights.schema_exists and not rights.create_in_database:
        return blocked(
            KIND,
            str(outbox.table),
            f"{rights.role} may not create schema {outbox.table.schema}",
            f"CREATE SCHEMA {schema} AUTHORIZATION {role}",
        )
    if rights.schema_exists and not rights.create_in_schema:
        return blocked(
            KIND,
            str(outbox.table),
            f"{rights.role} may not create tables in schema {outbox.table.schema}",
            f"GRANT CREATE ON SCHEMA {schema} TO {role}",
        )
    create_schema = sql.SQL(statements.get("create_schema")).format(
        schema=sql.Identifier(outbox.table.schema)
    )
    before = () if rights.schema_exists else (create_schema,)
    return _object(outbox, State.MISSING, (*before, *ddl(outbox, today)), ())


def _object(
    outbox: Outbox, state: State, found: tuple[sql.Composed, ...], changes: tuple[FieldChange, ...]
) -> ObjectPlan:
    return ObjectPlan(KIND, str(outbox.table), state, changes=changes, statement=text_of(found), sql=found)


# -- what a person has to decide ---------------------------------------------------------------------


def _shape(live: LiveTable, outbox: Outbox) -> Iterator[tuple[FieldChange, str]]:
    want_kind = {Partitioning.NONE: "r", Partitioning.DAILY: "p"}[outbox.partition]
    if live.kind != want_kind:
        kinds = {"r": "table", "p": "partitioned table", "v": "view", "m": "materialized view"}
        have, want = kinds.get(live.kind, f"relation of kind {live.kind}"), kinds[want_kind]
        yield FieldChange("kind", have, want), "choose another outbox.table, or set outbox.partition to match"
        return
    if outbox.partition is Partitioning.DAILY and live.partition_key != "RANGE (occurred_at)":
        yield (
            FieldChange("partition key", str(live.partition_key), "RANGE (occurred_at)"),
            "choose another outbox.table",
        )
    want_key = _primary_key(outbox)
    if list(live.primary_key) != want_key:
        yield (
            FieldChange("primary key", ", ".join(live.primary_key) or "none", ", ".join(want_key)),
            f"ALTER TABLE {_name(outbox)} ADD PRIMARY KEY ({', '.join(want_key)})",
        )


def _columns(live: LiveTable, outbox: Outbox) -> Iterator[tuple[FieldChange, str]]:
    found = {column["name"]: column for column in live.columns}
    table = _name(outbox)
    for name, sql_type, nullable in _wanted_columns(outbox):
        column = found.pop(name, None)
        if column is None:
            if not nullable or name == "payload":
                yield (
                    _missing_column(name, sql_type),
                    f"ALTER TABLE {table} ADD COLUMN {name} …",
                )
            continue
        if column["type"] != sql_type:
            yield (
                FieldChange(f"column {name}", column["type"], sql_type),
                f"ALTER TABLE {table} ALTER COLUMN {name} TYPE {sql_type}",
            )
        if nullable and column["not_null"]:
            yield (
                FieldChange(f"column {name}", "NOT NULL", "nullable"),
                f"ALTER TABLE {table} ALTER COLUMN {name} DROP NOT NULL",
            )
        if not nullable and not column["not_null"]:
            yield (
                FieldChange(f"column {name}", "nullable", "NOT NULL"),
                f"ALTER TABLE {table} ALTER COLUMN {name} SET NOT NULL",
            )
        if nullable and column["default"] is not None:
            # Debezium emits the default in the place of NULL (measured on 3.7.0.Final).
            yield (
                FieldChange(f"column {name}", f"DEFAULT {column['default']}", "no default"),
                f"ALTER TABLE {table} ALTER COLUMN {name} DROP DEFAULT",
            )
        if name == "position" and not column["identity"]:
            yield (
                FieldChange("column position", "no identity", "GENERATED ALWAYS AS IDENTITY"),
                f"ALTER TABLE {table} ALTER COLUMN position ADD GENERATED ALWAYS AS IDENTITY",
            )
    for name, column in found.items():
        if column["not_null"] and column["default"] is None and not column["identity"]:
            yield (
                FieldChange(f"column {name}", "NOT NULL without default", "absent or nullable"),
                f"ALTER TABLE {table} ALTER COLUMN {name} DROP NOT NULL",
            )


def _checks(live: LiveTable, outbox: Outbox) -> Iterator[tuple[FieldChange, str]]:
    have = {_normal(definition) for definition in live.checks.values()}
    columns = {column["name"] for column in live.columns}
    for name, definition in expected_checks(outbox).items():
        column = name.split("_fit")[0]
        if _normal(definition) in have or column not in columns:
            continue
        yield (
            FieldChange(f"check {name}", live.checks.get(name, "missing"), definition),
            (f"ALTER TABLE {_name(outbox)} DROP CONSTRAINT {name}; " if name in live.checks else "")
            + f"ALTER TABLE {_name(outbox)} ADD CONSTRAINT {name} {definition} NOT VALID",
        )


# -- what apply may do -------------------------------------------------------------------------------


def _mends(
    live: LiveTable, outbox: Outbox, today: date, taken: frozenset[str]
) -> Iterator[tuple[FieldChange, sql.Composed]]:
    yield from _missing_columns(live, outbox)
    yield from _trigger(live, outbox)
    if outbox.partition is Partitioning.NONE:
        yield from _options(live.options, outbox.table)
        return
    for name in expected_partitions(outbox, today):
        table = TableName(outbox.table.schema, name)
        if name not in live.partitions and name.rpartition("_")[2] not in taken:
            made = FieldChange(f"partition {name}", "missing", "present", ChangeKind.MISSING_PARTITION, name)
            yield made, _partition(outbox, name)
            field, kind = f"partition {name} parameters", ChangeKind.PARTITION_PARAMETERS
            yield FieldChange(field, "missing", "set", kind, name), _autovacuum(table)
    for name, partition in live.partitions.items():
        yield from _options(partition["options"], TableName(outbox.table.schema, name))


def _missing_columns(live: LiveTable, outbox: Outbox) -> Iterator[tuple[FieldChange, sql.Composed]]:
    found = {column["name"] for column in live.columns}
    for name, sql_type, nullable in _wanted_columns(outbox):
        if name not in found and nullable and name != "payload":
            text = name != "headers"
            statement = sql.SQL(statements.get("add_outbox_column")).format(
                table=identifier(outbox.table),
                column=sql.Identifier(name),
                type=sql.SQL("text") if text else sql.SQL("jsonb"),
                check=sql.Identifier(f"{name}_fits_a_header" if text else "headers_fit_a_header"),
                limit=sql.Literal(record.MAX_TRACE_TEXT if text else record.MAX_HEADERS_BYTES),
            )
            yield _missing_column(name, sql_type), statement


def _missing_column(name: str, sql_type: str) -> FieldChange:
    return FieldChange(f"column {name}", "missing", sql_type, ChangeKind.MISSING_COLUMN, name)


def _trigger(live: LiveTable, outbox: Outbox) -> Iterator[tuple[FieldChange, sql.Composed]]:
    if any(live.row_triggers.values()):
        return
    table = identifier(outbox.table)
    if TRIGGER in live.row_triggers:
        statement = sql.SQL(statements.get("enable_row_trigger")).format(
            table=table, trigger=sql.Identifier(TRIGGER)
        )
        yield FieldChange(f"trigger {TRIGGER}", "disabled", "enabled"), statement
        return
    statement = sql.SQL(statements.get("create_copy_trigger")).format(table=table)
    yield FieldChange(f"trigger {TRIGGER}", "missing", "BEFORE INSERT FOR EACH ROW"), statement


def _options(options: Sequence[str], table: TableName) -> Iterator[tuple[FieldChange, sql.Composed]]:
    have = dict(option.split("=", 1) for option in options)
    want = expected_options()
    if not all(name in have for name in want):  # another value is the operator's choice
        missing = [name for name in want if name not in have]
        change = FieldChange(
            f"parameters of {table.name}", "not set", ", ".join(f"{name} = {want[name]}" for name in missing)
        )
        yield change, _autovacuum(table)


# -- what is expected --------------------------------------------------------------------------------


def _wanted_columns(outbox: Outbox) -> Iterator[tuple[str, str, bool]]:
    for column in record.COLUMNS:
        sql_type = outbox.payload.value if column.name == "payload" else column.sql_type
        yield column.name, _TYPE_NAMES.get(sql_type, sql_type), column.nullable


def _primary_key(outbox: Outbox) -> list[str]:
    # The key of a partitioned table has to contain the column that chooses the partition.
    return ["id", "occurred_at"] if outbox.partition is Partitioning.DAILY else ["id"]


def expected_checks(outbox: Outbox) -> dict[str, str]:
    """Name each CHECK of the table with its text, as the DDL has it."""
    return {name: " ".join(text.split()) for name, text in _CHECK.findall(_create(outbox).as_string(None))}


def expected_options() -> dict[str, str]:
    """Name the storage parameters with their values, as the DDL has them."""
    return dict(_OPTION.findall(statements.get("set_outbox_autovacuum")))


def expected_partitions(outbox: Outbox, today: date) -> tuple[str, ...]:
    """Name the partitions that have to exist today: the default one, today's and those ahead."""
    days = (today + timedelta(days=ahead) for ahead in range(DAYS_AHEAD + 1))
    return f"{outbox.table.name}_default", *(f"{outbox.table.name}_{day:%Y%m%d}" for day in days)


def _partition(outbox: Outbox, name: str) -> sql.Composed:
    partition = sql.Identifier(outbox.table.schema, name)
    suffix = name.removeprefix(f"{outbox.table.name}_")
    if suffix == "default":
        return sql.SQL(statements.get("create_outbox_default_partition")).format(
            partition=partition, table=identifier(outbox.table)
        )
    first = datetime.combine(datetime.strptime(suffix, "%Y%m%d"), time(), UTC)
    return sql.SQL(statements.get("create_outbox_partition")).format(
        partition=partition,
        table=identifier(outbox.table),
        first=sql.Literal(f"{first:%Y-%m-%d} 00:00:00+00"),
        behind=sql.Literal(f"{first + timedelta(days=1):%Y-%m-%d} 00:00:00+00"),
    )


def _normal(check: str) -> str:
    """Strip what PostgreSQL adds when it prints an expression: blanks, parentheses and casts."""
    return re.sub(r"::\w+|NOT VALID$|[\s()]", "", check)


def _quoted(name: str) -> str:
    return sql.Identifier(name).as_string(None)


def _name(outbox: Outbox) -> str:
    return identifier(outbox.table).as_string(None)


def _listed(changes: Sequence[FieldChange]) -> str:
    shown = ", ".join(f"{change.field} is {change.have}, wants {change.want}" for change in changes[:3])
    return shown + (f" and {len(changes) - 3} more" if len(changes) > 3 else "")


def _remedy(remedies: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(remedies)) if len(remedies) <= 3 else "choose another outbox.table"
