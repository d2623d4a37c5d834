"""The definition file that a new pipeline starts with."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

from outbox_connectors import loading
from outbox_connectors.errors import DefinitionError, UsageError

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# What YAML 1.1 takes for a flag or for nothing.
_NO_TEXT = frozenset({"on", "off", "yes", "no", "y", "n", "true", "false", "null"})


def text(pipeline: str, *, database: str) -> str:
    """Write a commented definition for a pipeline of that name, everything else at its default.

    Raises UsageError where a name cannot be used.
    """
    template = files(__package__).joinpath("starting_file.yaml").read_text("utf-8")
    _check_names(pipeline, database)
    template = template.replace("pipeline: <pipeline>", f"pipeline: {_scalar(pipeline)}")
    return template.replace("<pipeline>", pipeline).replace("<database>", _scalar(database))


def _scalar(name: str) -> str:
    """Write a name so that YAML takes it for text."""
    plain = _PLAIN.fullmatch(name) and name.lower() not in _NO_TEXT
    return name if plain else json.dumps(name, ensure_ascii=False)


def _check_names(pipeline: str, database: str) -> None:
    """Try the names on their own: nobody looks for a mistake of the command line in a template."""
    connector = {"database": database, "host": "localhost", "user": f"{pipeline}_cdc", "password": "${env:X}"}
    minimal = {
        "pipeline": pipeline,
        "postgres": {"connector": connector},
        "kafka": {"client": {"bootstrap.servers": "localhost"}},
    }
    try:
        loading.loads(json.dumps(minimal), source="", environ={})
    except DefinitionError as error:
        raise UsageError(error.problem, remedy=error.remedy) from None


def write(path: Path, content: str) -> None:
    """Create the file; raises UsageError where there is one already, and never overwrites it."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(content)
    except FileExistsError:
        raise UsageError(
            "there is a file already", where=str(path), remedy="give another with -f, or remove that one"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path)) from error
