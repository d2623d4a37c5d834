"""Every statement that the pipeline sends to PostgreSQL: one per file, its purpose in the first line.

`ls` of this folder is the whole conversation. Values are `%(name)s` parameters, identifiers are
`{name}` placeholders that callers fill with `psycopg.sql`. A statement that differs between server
versions has a file per variant: `slot_status.sql` for every version, `slot_status_pg17.sql` from
PostgreSQL 17 on.
"""

from __future__ import annotations

from typing import LiteralString

from outbox_connectors import statements


def get(name: str, server_major: int = 0) -> LiteralString:
    """Read the statement `name` in the newest variant that `server_major` understands.

    Raises KeyError for a name that has no file: a fault of ours, never of a user.
    """
    return statements.read(__name__, name, server_major)
