"""A connector's configuration as text: read from JSON, compared property by property, secrets hidden."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outbox_connectors import masking
from outbox_pipeline.errors import UsageError

_REFERENCE = re.compile(r"\$\{[^{}:]+:[^{}]+\}")


@dataclass(frozen=True, slots=True)
class Difference:
    """One property that two configurations do not share; None stands for an absent one."""

    field: str
    have: str | None
    want: str | None


def differences(have: Mapping[str, str], want: Mapping[str, str]) -> tuple[Difference, ...]:
    """Compare two configurations, secrets hidden, in alphabetical order.

    Connect stores the connector's name inside its configuration; that is no difference. A secret
    that changed shows as `***` on both sides.
    """
    fields = sorted({*have, *want} - {"name"})
    return tuple(
        Difference(field, _shown(field, have.get(field)), _shown(field, want.get(field)))
        for field in fields
        if have.get(field) != want.get(field)
    )


def explained(complaint: str, config: Mapping[str, str]) -> str:
    """Add to a refused login what may be behind it: a reference that the worker does not resolve.

    Kafka leaves a reference as it is where no provider of that name is configured, or the variable or key
    is not there (Kafka documentation, ConfigProvider), so that its text is tried as the password. Pure.
    """
    password = config.get("database.password", "")
    if "password authentication failed" not in complaint or not _REFERENCE.search(password):
        return complaint
    return (
        f"{complaint}: either the password is wrong, or the worker cannot resolve {password} and sends it "
        "literally (see config.providers of the worker, and the variable or file it names)"
    )


def literal_secrets(config: Mapping[str, str]) -> tuple[str, ...]:
    """Name the properties whose secret would be stored, readable by everybody who may ask Connect."""
    return tuple(field for field, value in sorted(config.items()) if masking.is_literal_secret(field, value))


def _shown(field: str, value: str | None) -> str | None:
    return None if value is None else masking.shown(field, value)


def read_file(path: Path, name: str | None) -> tuple[str, dict[str, str]]:
    """Read a connector from a JSON file: `{"name": ..., "config": {...}}` or the bare config.

    `name` wins over the one in the file. Returns name and config, every value as text the way
    Connect stores it. Raises UsageError, with file and line where the JSON is broken.
    """
    document = _json(path)
    nested = document.get("config")
    config = nested if isinstance(nested, dict) else document
    given = name or document.get("name")
    if not isinstance(given, str) or not given:
        raise UsageError(
            "the connector has no name", where=str(path), remedy='give --name, or write {"name", "config"}'
        )
    texts = {str(key): _text(path, str(key), value) for key, value in config.items() if key != "name"}
    if not texts.get("connector.class"):
        raise UsageError("connector.class is missing", where=str(path))
    return given, texts


def _json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise UsageError("is not UTF-8 text", where=str(path)) from error
    except json.JSONDecodeError as error:
        raise UsageError(f"is not JSON: {error.msg}", where=f"{path}:{error.lineno}") from error
    if not isinstance(document, dict):
        raise UsageError("is not a JSON object", where=str(path))
    return document


def _text(path: Path, key: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise UsageError(f"{key} is neither text, number nor boolean", where=str(path))
