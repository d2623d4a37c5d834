"""Write the definition file of a new pipeline (`outboxctl init`)."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

from outbox_connectors import loading
from outbox_connectors.errors import DefinitionError, UsageError

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# Words that YAML 1.1 reads as a boolean or as null.
_NO_TEXT = frozenset({"on", "off", "yes", "no", "y", "n", "true", "false", "null"})


def text(pipeline: str, *, database: str) -> str:
    """Return a commented definition for a pipeline of that name, with defaults for everything else.

    Raises UsageError for an invalid name.
    """
    template = files(__package__).joinpath("starting_file.yaml").read_text("utf-8")
    _check_names(pipeline, database)
    template = template.replace("pipeline: <pipeline>", f"pipeline: {_scalar(pipeline)}")
    return template.replace("<pipeline>", pipeline).replace("<database>", _scalar(database))


def _scalar(name: str) -> str:
    """Quote a name if YAML would not read it as text."""
    plain = _PLAIN.fullmatch(name) and name.lower() not in _NO_TEXT
    return name if plain else json.dumps(name, ensure_ascii=False)


def _check_names(pipeline: str, database: str) -> None:
    """Validate the names on their own, so that the error does not refer to a line of the template."""
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
    """Create the file. Never overwrites: raises UsageError if it exists or cannot be written."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(content)
    except FileExistsError:
        raise UsageError(
            "there is a file already", where=str(path), remedy="give another with -f, or remove that one"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path)) from error
