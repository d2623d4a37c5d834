"""outbox.schema.json describes the file that the loader reads: same keys, nothing it lets through less."""

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
from outbox_connectors.loading import loads
from outbox_connectors.sections import KEYS
from unit.connectors.definitions import FULL, MINIMAL

ROOT = Path(__file__).parents[3]
SCHEMA: dict[str, Any] = json.loads((ROOT / "connectors/outbox.schema.json").read_text("utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    return SCHEMA["$defs"][reference.rpartition("/")[2]] if reference else schema


def keys_of(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    schema = resolved(schema)
    if "properties" not in schema:
        inner = schema.get("additionalProperties")
        if isinstance(inner, dict) and resolved(inner).get("properties"):
            yield from keys_of(inner, f"{path}.*")
        return
    yield path, tuple(schema["properties"])
    for key, member in schema["properties"].items():
        yield from keys_of(member, f"{path}.{key}" if path else key)


def described(schema: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    for key, member in schema.get("properties", {}).items():
        yield key, bool(member.get("description")) or key == "seconds_left"
        yield from described(member)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_keys_are_the_loaders() -> None:
    found = {path: set(keys) for path, keys in keys_of(SCHEMA)}
    assert found == {path: set(keys) for path, keys in KEYS.items()}


def test_every_key_is_described() -> None:
    assert [key for key, fine in described(SCHEMA) if not fine] == []


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
    for path in [(), *[p for p in places(full_document()) if ".".join(p) in KEYS]]:
        document = full_document()
        parent: Any = document
        for key in path:
            parent = parent[key]
        parent["surprise"] = 1
        assert not VALIDATOR.is_valid(document), path
        with pytest.raises(DefinitionError, match="unknown key"):
            loads(yaml.safe_dump(document), source="outbox.yaml", environ={})
