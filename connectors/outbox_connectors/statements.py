"""Load SQL statements from a package's `.sql` files: one statement a file, its purpose in the first line.

Values are `%(name)s` parameters, identifiers are `{name}` placeholders that callers fill with
`psycopg.sql`. A statement that differs between server versions has a file per variant:
`slot_status.sql` for every version, `slot_status_pg17.sql` from PostgreSQL 17 on.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import LiteralString

_VARIANT = re.compile(r"^(?P<name>.+)_pg(?P<major>\d+)$")


@cache
def variants(package: str) -> dict[str, dict[int, str]]:
    """Map each statement of the package to its files by the lowest server version they support."""
    found: dict[str, dict[int, str]] = {}
    for entry in resources.files(package).iterdir():
        if not entry.name.endswith(".sql"):
            continue
        stem = entry.name.removesuffix(".sql")
        variant = _VARIANT.match(stem)
        name, major = (variant["name"], int(variant["major"])) if variant else (stem, 0)
        found.setdefault(name, {})[major] = entry.name
    return found


@cache
def read(package: str, name: str, server_major: int = 0) -> LiteralString:
    """Read the statement `name` in the newest variant that `server_major` supports.

    Raises KeyError for a name without a file, which is a programming error.
    """
    files = variants(package)[name]
    best = max(major for major in files if major <= server_major)
    return resources.files(package).joinpath(files[best]).read_text("utf-8")
