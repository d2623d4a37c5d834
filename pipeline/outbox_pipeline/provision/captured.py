"""The live table that a connector captures, found by its own configuration and not by a definition."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg
from psycopg.rows import TupleRow

from outbox_connectors.config_view import CapturedTable, TableColumn, matches
from outbox_connectors.definition import TableName
from outbox_connectors.masking import holds_reference
from outbox_pipeline import sql as statements
from outbox_pipeline.provision import publications, tables


def outbox_of(conn: psycopg.Connection[TupleRow], config: Mapping[str, str]) -> CapturedTable | None:
    """Read the one table that the configuration's table.include.list matches.

    None where it matches none or several, or where the list is a reference: then nobody here knows.
    Reads catalogs only.
    """
    found = _matching(conn, config.get("table.include.list", ""))
    live = tables.read(conn, found[0]) if len(found) == 1 else None
    if live is None:
        return None
    publication = publications.read(conn, config.get("publication.name") or "dbz_publication")
    return CapturedTable(
        columns=tuple(
            TableColumn(column["name"], column["type"], not column["not_null"], column["default"] or "")
            for column in live.columns
        ),
        has_row_trigger=any(live.row_triggers.values()),
        partitioned=live.kind == "p",
        publishes_via_root=publication is None or publication.via_root,
    )


def _matching(conn: psycopg.Connection[TupleRow], include: str) -> list[TableName]:
    """Debezium matches each entry as a whole and without regard to case (its documentation)."""
    patterns = [entry.strip() for entry in include.split(",") if entry.strip()]
    if holds_reference(include) or not patterns:
        return []
    names = [TableName(schema, name) for schema, name in conn.execute(statements.get("list_tables"))]
    return [name for name in names if any(matches(f"(?i){entry}", str(name)) for entry in patterns)]
