"""Command lines that a person will paste into a shell."""

from __future__ import annotations


def psql(statement: str, database: str = "") -> str:
    """Wrap a statement into a command line."""
    shell = statement.replace("'", "'\\''")
    where = f" -d {database}" if database else ""
    return f"psql{where} -c '{shell}'"
