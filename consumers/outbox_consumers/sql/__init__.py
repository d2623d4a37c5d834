"""All SQL statements of the consumers, one per file."""

from __future__ import annotations

from typing import LiteralString

from psycopg import sql

from outbox_connectors import statements


def get(name: str, server_major: int = 0) -> LiteralString:
    """Read the statement `name` in the newest variant that the server version supports."""
    return statements.read(__name__, name, server_major)


def compose(name: str, **parts: sql.Composable) -> bytes:
    """Fill the `{placeholders}` of a statement. Done once, so that executing it costs nothing more."""
    return sql.SQL(get(name)).format(**parts).as_bytes(None)


def table(name: str) -> sql.Identifier:
    """Quote `table` or `schema.table`."""
    return sql.Identifier(*name.split(".", 1))


def role(name: str) -> sql.Identifier:
    """Quote the name of a role."""
    return sql.Identifier(name)


def dead_letter(inbox: str) -> sql.Identifier:
    """Quote the name of an inbox's table of dead letters."""
    return table(f"{inbox}_dead_letter")


def parked(inbox: str) -> sql.Identifier:
    """Quote the name of an inbox's table of parked events."""
    return table(f"{inbox}_parked")


def journal(inbox: str) -> sql.Identifier:
    """Quote the name of an inbox's journal of deletions."""
    return table(f"{inbox}_journal")


def member(inbox: str) -> sql.Identifier:
    """Quote the name of an inbox's table of running processes."""
    return table(f"{inbox}_member")


def attempt(inbox: str) -> sql.Identifier:
    """Quote the name of an inbox's table of attempts of events that may have crashed a process."""
    return table(f"{inbox}_attempt")


def tables(inbox: str) -> dict[str, sql.Identifier]:
    """Quote the names of an inbox's tables, by their placeholders in statements."""
    return {
        "inbox": table(inbox),
        "dead_letter": dead_letter(inbox),
        "parked": parked(inbox),
        "journal": journal(inbox),
        "member": member(inbox),
        "attempt": attempt(inbox),
    }
