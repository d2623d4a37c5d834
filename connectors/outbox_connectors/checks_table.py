"""Check whether the live outbox table fits the connector that reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from outbox_connectors.config_view import CapturedTable, View
from outbox_connectors.findings import Finding, Severity
from outbox_connectors.profile import FIXES_COPY_PAGES
from outbox_connectors.record import COLUMNS, Place

_SPELLINGS: Final = {"timestamptz": "timestamp with time zone", "int": "integer", "int4": "integer"}


def _missing_columns(_: View, table: CapturedTable) -> Iterator[Finding]:
    for column in COLUMNS:
        if column.place is not Place.NOWHERE and table.column(column.name) is None:
            cause = f"column {column.name} is missing, and the router fails on the first row without it"
            yield Finding("missing-column", Severity.CRITICAL, cause, "run outboxctl plan", "EventRouter")


def _column_types(_: View, table: CapturedTable) -> Iterator[Finding]:
    for column in COLUMNS:
        live = table.column(column.name)
        if live is None or column.place is Place.NOWHERE:
            continue
        wanted = {_SPELLINGS.get(column.sql_type, column.sql_type)}
        if column.name == "payload":
            wanted |= {"bytea"}
        if _SPELLINGS.get(live.sql_type, live.sql_type) not in wanted:
            cause = f"column {live.name} is {live.sql_type}, which travels as other bytes"
            remedy = f"make it {' or '.join(sorted(wanted))}"
            yield Finding("column-type", Severity.CRITICAL, cause, remedy, "Debezium type mapping")


def _defaults(_: View, table: CapturedTable) -> Iterator[Finding]:
    for column in COLUMNS:
        live = table.column(column.name)
        if live is None or column.place is Place.NOWHERE or not (live.nullable and live.default):
            continue
        cause = f"column {live.name} is nullable with a DEFAULT: Debezium sends the default where NULL stands"
        remedy = f"ALTER TABLE ... ALTER COLUMN {live.name} DROP DEFAULT"
        yield Finding("default-on-nullable", Severity.CRITICAL, cause, remedy, "Struct.get in Kafka Connect")


def _nullable(_: View, table: CapturedTable) -> Iterator[Finding]:
    for column in COLUMNS:
        live = table.column(column.name)
        if live is not None and live.nullable and not column.nullable and column.place is not Place.NOWHERE:
            cause = f"column {live.name} may be NULL, and a row with NULL there cannot be delivered in order"
            remedy = f"ALTER TABLE ... ALTER COLUMN {live.name} SET NOT NULL"
            yield Finding("nullable-column", Severity.CRITICAL, cause, remedy, "EventRouter")


def _row_trigger(view: View, table: CapturedTable) -> Iterator[Finding]:
    if table.has_row_trigger:
        return
    loses = view.older_than(FIXES_COPY_PAGES)
    severity = Severity.CRITICAL if loses else Severity.WARNING
    cause = "without a row trigger, rows of one COPY page share a position in the log"
    cause += ", and a restart in the middle loses the rest of the page" if loses else ""
    yield Finding("no-row-trigger", severity, cause, "run outboxctl apply", "Debezium dbz#1554")


def _partition_root(_: View, table: CapturedTable) -> Iterator[Finding]:
    if table.partitioned and not table.publishes_via_root:
        cause = "rows are published under the names of partitions, which no filter matches: nothing arrives"
        remedy = "ALTER PUBLICATION ... SET (publish_via_partition_root = true)"
        yield Finding("partition-root", Severity.CRITICAL, cause, remedy, "PostgreSQL CREATE PUBLICATION")


def _configured_columns(view: View, table: CapturedTable) -> Iterator[Finding]:
    """Compare the columns that the router is configured to read with those of the table, for any contract."""
    names = ", ".join(column.name for column in table.columns)
    for alias in view.routers:
        prefix = f"transforms.{alias}."
        wanted = {
            key: view.get(f"{prefix}{key}") or default
            for key, default in ROUTER_COLUMNS.items()
            if default or view.get(f"{prefix}{key}")
        }
        placed = view.names(f"{prefix}table.fields.additional.placement")
        if view.get(f"{prefix}table.field.additional.missing").lower() != "ignore":
            wanted |= {f"placement {entry}": entry.partition(":")[0] for entry in placed}
        for key, column in wanted.items():
            if table.column(column) is None:
                cause = f"{key} is {column}, which the table has not: the first row fails the task"
                remedy = f"find out which of its columns is meant: {names}"
                yield Finding("missing-column", Severity.CRITICAL, cause, remedy, "EventRouter")


# Router options that name a column, with Debezium's defaults; those without a default count only when set.
ROUTER_COLUMNS: Final = {
    "table.field.event.id": "id",
    "table.field.event.key": "aggregateid",
    "table.field.event.payload": "payload",
    "route.by.field": "aggregatetype",
    "table.field.event.timestamp": "",
    "table.field.event.schema.version": "",
}
FOREIGN_RULES: Final[tuple[Callable[[View, CapturedTable], Iterator[Finding]], ...]] = (
    _configured_columns,
    _row_trigger,
    _partition_root,
)
RULES: Final[tuple[Callable[[View, CapturedTable], Iterator[Finding]], ...]] = (
    _missing_columns,
    _column_types,
    _defaults,
    _nullable,
    _row_trigger,
    _partition_root,
)
