"""What is written from the table of keys, and that the schema refuses nothing that the loader accepts."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from outbox_connectors.errors import DefinitionError
from outbox_connectors.key_reference import json_schema, readme_table, write
from outbox_connectors.keys import KEYS, SECTIONS
from outbox_connectors.loading import loads
from unit.connectors.definitions import FULL, MINIMAL

ROOT = Path(__file__).parents[3]
SCHEMA: dict[str, Any] = json.loads((ROOT / "connectors/outbox.schema.json").read_text("utf-8"))
WRITE_ANEW = "run python -m outbox_connectors.key_reference connectors"
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_written_schema_is_that_of_the_keys() -> None:
    assert json_schema() == SCHEMA, WRITE_ANEW


def test_the_readme_has_the_table_of_the_keys() -> None:
    assert readme_table() in (ROOT / "connectors/README.md").read_text("utf-8"), WRITE_ANEW


def test_writing_anew_changes_nothing(tmp_path: Path) -> None:
    for name in ("README.md", "outbox.schema.json"):
        tmp_path.joinpath(name).write_bytes((ROOT / "connectors" / name).read_bytes())
    write(tmp_path)
    for name in ("README.md", "outbox.schema.json"):
        assert tmp_path.joinpath(name).read_bytes() == (ROOT / "connectors" / name).read_bytes()


def test_every_key_says_what_it_means() -> None:
    assert [key.path for key in KEYS if not key.meaning.endswith(".")] == []


def test_a_key_stands_once_and_in_a_section() -> None:
    paths = [key.path for key in KEYS]
    assert len(set(paths)) == len(paths)
    assert {path.removesuffix(".*") for path in SECTIONS} - {""} <= set(paths)


def test_every_default_is_one_that_the_file_could_give() -> None:
    """The defaults are written as in a file: a file that gives them all means the same as none."""
    document: dict[str, Any] = yaml.safe_load(MINIMAL)
    for key in KEYS:
        if key.default and "*" not in key.path:
            *outer, name = key.path.split(".")
            parent = document
            for part in outer:
                parent = parent.setdefault(part, {})
            parent[name] = yaml.safe_load(key.default.replace("<pipeline>", "shop"))
    assert list(VALIDATOR.iter_errors(document)) == []
    given = loads(yaml.safe_dump(document), source="outbox.yaml", environ={})
    assert given == loads(MINIMAL, source="outbox.yaml", environ={})


def test_the_shipped_file_is_accepted() -> None:
    document = yaml.safe_load((ROOT / "connectors/outbox.yaml").read_text("utf-8"))
    assert list(VALIDATOR.iter_errors(document)) == []


def test_the_smallest_file_is_accepted() -> None:
    assert list(VALIDATOR.iter_errors(yaml.safe_load(MINIMAL))) == []


def test_a_file_with_every_key_is_accepted() -> None:
    assert list(VALIDATOR.iter_errors(yaml.safe_load(FULL))) == []
    loads(FULL, source="outbox.yaml", environ={})


BAD_VALUES: tuple[Any, ...] = (7, -1, 0, True, "", "Ä b", "x" * 300, [], ["a"], [1], {}, {"a": 1}, None, 1.5)


def places(document: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in document.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from places(value, (*path, key))


def full_document() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "connectors/outbox.yaml").read_text("utf-8"))
    document["connect"] |= {"connector": "c", "topic_prefix": "p", "auth": {"bearer": "b"}}
    document["connect"]["config"] = {"poll.interval.ms": 10}
    document["postgres"] |= {"failover": True}
    return document


def refused(document: Mapping[str, Any]) -> bool:
    try:
        loads(yaml.safe_dump(document), source="outbox.yaml", environ={})
    except DefinitionError:
        return True
    return False


@pytest.mark.parametrize("path", list(places(full_document())), ids=".".join)
def test_what_the_schema_refuses_the_loader_refuses(path: tuple[str, ...]) -> None:
    for bad in (*BAD_VALUES, "delete"):
        document = copy.deepcopy(full_document())
        parent = document
        for key in path[:-1]:
            parent = parent[key]
        if bad == "delete":
            del parent[path[-1]]
        else:
            parent[path[-1]] = bad
        if VALIDATOR.is_valid(document):
            continue
        assert refused(document), f"{'.'.join(path)} = {bad!r} is refused by the schema only"


def test_unknown_keys_are_refused_by_both() -> None:
    for path in [(), *[p for p in places(full_document()) if ".".join(p) in SECTIONS]]:
        document = full_document()
        parent: Any = document
        for key in path:
            parent = parent[key]
        parent["surprise"] = 1
        assert not VALIDATOR.is_valid(document), path
        with pytest.raises(DefinitionError, match="unknown key"):
            loads(yaml.safe_dump(document), source="outbox.yaml", environ={})
