"""Everything the road says to PostgreSQL: one statement a file, its purpose in the first line.

`ls` of this folder is the whole conversation. Values are `%(name)s` parameters, identifiers are
`{name}` placeholders that callers fill with `psycopg.sql`. A statement that differs between server
versions has a file per variant: `slot_status.sql` for every version, `slot_status_pg17.sql` from
PostgreSQL 17 on.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import LiteralString

_VARIANT = re.compile(r"^(?P<name>.+)_pg(?P<major>\d+)$")


@cache
def _variants() -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for entry in resources.files(__name__).iterdir():
        if not entry.name.endswith(".sql"):
            continue
        stem = entry.name.removesuffix(".sql")
        variant = _VARIANT.match(stem)
        name, major = (variant["name"], int(variant["major"])) if variant else (stem, 0)
        found.setdefault(name, {})[major] = entry.name
    return found


@cache
def get(name: str, server_major: int = 0) -> LiteralString:
    """Read the statement `name` in the newest variant that `server_major` understands.

    Raises KeyError for a name that has no file: a fault of ours, never of a user.
    """
    variants = _variants()[name]
    best = max(major for major in variants if major <= server_major)
    return resources.files(__name__).joinpath(variants[best]).read_text("utf-8")
