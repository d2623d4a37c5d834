"""The statements that write events, their lists composed from the columns of the contract.

The texts keep `{table}` for the caller, who fills it with `psycopg.sql`, and have a parameter
`%(name)s` for each column that a writer gives.
"""

from __future__ import annotations

from functools import cache
from typing import LiteralString

from outbox_connectors.definition import Payload
from outbox_connectors.record import WRITTEN, Column
from outbox_pipeline import sql as statements


@cache
def add_event(payload: Payload | None) -> LiteralString:
    """Compose the INSERT of one event; `payload` None is a tombstone, for an outbox of either type."""
    return statements.get("add_event").format(
        table="{table}",
        columns=", ".join(column.name for column in WRITTEN),
        values=", ".join(_value(column, payload) for column in WRITTEN),
    )


@cache
def add_events(payload: Payload | None) -> LiteralString:
    """Compose the INSERT of many events, whose parameters are lists; `payload` as in `add_event`."""
    # NULL cast to jsonb does not fit a bytea column, nor the other way round: a tombstone sends none.
    sent = [column for column in WRITTEN if payload or column.name != "payload"]
    return statements.get("add_events").format(
        table="{table}",
        columns=", ".join(column.name for column in WRITTEN),
        values=", ".join(_element(column, payload) for column in WRITTEN),
        arrays=", ".join(f"CAST(%({column.name})b AS {_sent_as(column, payload)}[])" for column in sent),
        elements=", ".join(column.name for column in sent),
    )


def _type(column: Column, payload: Payload | None) -> LiteralString | None:
    """Name the type of a column; None where NULL is written without a type."""
    if column.name != "payload":
        return column.sql_type
    return payload.value if payload else None


def _sent_as(column: Column, payload: Payload | None) -> LiteralString | None:
    """Name the type of the parameter: JSON goes as text, whatever codec a driver has for jsonb."""
    name = _type(column, payload)
    return "text" if name == "jsonb" else name


def _value(column: Column, payload: Payload | None) -> LiteralString:
    name = _type(column, payload)
    if name is None:
        return "NULL"
    value = f"CAST(%({column.name})s AS {_sent_as(column, payload)})"
    return f"CAST({value} AS jsonb)" if name == "jsonb" else value


def _element(column: Column, payload: Payload | None) -> LiteralString:
    name = _type(column, payload)
    if name is None:
        return "NULL"
    return f"CAST(e.{column.name} AS jsonb)" if name == "jsonb" else f"e.{column.name}"
