"""Whose code would run when an administrator's session touches our tables.

Whoever may create objects in a schema can take the name of a table of ours and give it a trigger, which then
runs with the rights of the one who writes. So tables and functions that exist are used only if they belong to
a trusted role, and if what they call does: a superuser, the owner of the database or of the table's schema,
the session's own role, and roles whose rights it has as a member.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from outbox_connectors.definition import TableName
from outbox_connectors.errors import Refused
from outbox_pipeline import sql as statements

# What follows the outbox's name in the names of the tables that lie beside it.
BESIDE = (
    "default",
    "road",
    "relay",
    "relay_batch",
    "dead_letter",
    "history",
    "history_default",
    "replay",
)


@dataclass(frozen=True, slots=True)
class Untrusted:
    """An object of ours that another role owns, or that would run code of another role."""

    object: str
    owner: str
    what: str  # empty: the object itself belongs to that owner

    @property
    def why(self) -> str:
        """Say what is wrong, without the object's name."""
        who = f"role {self.owner}, which is not trusted"
        return f"{self.what}, which belongs to {who}" if self.what else f"belongs to {who}"

    @property
    def remedy(self) -> str:
        """Say what to do: never to give an object away whose contents nobody has looked at."""
        return "look at what it does; drop it, or let its owner be the owner of the database or of the schema"


def untrusted(
    conn: psycopg.Connection[Any], tables: Sequence[str], functions: Sequence[str] = ()
) -> list[Untrusted]:
    """Read what must not be touched of these, named as SQL quotes them. One query on catalogs, no lock.

    What does not exist is left out. Runs nothing that is not PostgreSQL's own.
    """
    wanted = {"tables": list(tables), "functions": list(functions)}
    with psycopg.Cursor(conn, row_factory=class_row(Untrusted)) as cursor:
        return cursor.execute(statements.get("read_untrusted"), wanted).fetchall()


def of_outbox(conn: psycopg.Connection[Any], table: TableName) -> list[Untrusted]:
    """Read the same of an outbox table and of everything that lies beside it."""
    names = (table.name, *(f"{table.name}_{suffix}" for suffix in BESIDE))
    wake = sql.Identifier(table.schema, f"{table.name}_wake_relay").as_string(None)
    return untrusted(
        conn, [sql.Identifier(table.schema, name).as_string(None) for name in names], [f"{wake}()"]
    )


def refuse(found: Sequence[Untrusted]) -> None:
    """Raise Refused for the first of them."""
    if found:
        raise Refused(found[0].why, where=found[0].object, remedy=found[0].remedy)
