"""Generate the reference of the definition's keys: `outbox.schema.json` and the README's table.

Run it after a change of `keys`: `python -m outbox_connectors.key_reference connectors`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

from outbox_connectors.keys import KEYS, SECTIONS, Key

_ABOUT: Final = (
    "One pipeline: an outbox table in PostgreSQL, its slot and publication, a Debezium connector and the "
    "topics. ${NAME} and ${NAME:-default} come from the environment, ${provider:path:key} is resolved by "
    "Kafka Connect, $${ is a plain ${."
)
_TABLE = re.compile(r"^\| key \| default \| meaning \|\n(?:\|.*\n)+", re.MULTILINE)


def json_schema() -> dict[str, Any]:
    """Build the JSON Schema that editors use to complete, explain and check a definition file."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "outbox-pipeline definition"}
    return head | {"description": _ABOUT, "type": "object"} | _members("")


def _members(path: str) -> dict[str, Any]:
    keys = SECTIONS[path]
    required = [name for name, key in keys.items() if key.default is None and not key.unless]
    return {
        "additionalProperties": False,
        **({"required": required} if required else {}),
        "properties": {name: _described(key) for name, key in keys.items()},
    }


def _described(key: Key) -> dict[str, Any]:
    nullable = key.default is not None or key.unless
    types = [*key.type.types, "null"] if nullable else list(key.type.types)
    schema = {
        "description": f"{key.meaning} Default: {key.default}." if key.default else key.meaning,
        "type": types if len(types) > 1 else types[0],
        **key.type.schema,
    }
    if key.path in SECTIONS:
        return schema | _members(key.path)
    if f"{key.path}.*" in SECTIONS:
        return schema | {"additionalProperties": {"type": ["object", "null"], **_members(f"{key.path}.*")}}
    return schema


def readme_table() -> str:
    """Build the README's table: a row for each key that holds a value; a star marks the required ones."""
    rows = [
        f"| `{key.path}`{'' if key.default is not None else ' *'} |{_shown(key)}| {key.meaning} |\n"
        for key in KEYS
        if key.path not in SECTIONS
    ]
    return "".join(("| key | default | meaning |\n", "|---|---|---|\n", *rows))


def _shown(key: Key) -> str:
    if key.default is None:
        return " "
    return f" `{key.default}` " if key.default else " none "


def write(folder: Path) -> None:
    """Write outbox.schema.json in `folder` and replace the table in its README.md."""
    text = json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
    folder.joinpath("outbox.schema.json").write_text(text, "utf-8")
    readme = folder / "README.md"
    readme.write_text(_TABLE.sub(lambda _: readme_table(), readme.read_text("utf-8"), count=1), "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
