"""Read a definition file: text, environment -> `Definition`, or one line that says what to change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from outbox_connectors.definition import Definition


def load(path: Path, environ: Mapping[str, str]) -> Definition:
    """Read the definition file at `path`. Raises DefinitionError."""
    raise NotImplementedError


def loads(text: str, *, source: str, environ: Mapping[str, str]) -> Definition:
    """Read a definition from `text`; `source` names it in messages. Raises DefinitionError."""
    raise NotImplementedError
