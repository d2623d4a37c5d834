"""The output of `outboxctl`: results on stdout, progress and hints on stderr, colours only on a terminal."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click


def json_document(document: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print one JSON document on stdout."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, default=str))


def line(text: str = "") -> None:
    """Print one line of a result on stdout."""
    click.echo(text)


def progress(text: str) -> None:
    """Print progress on stderr."""
    click.echo(text, err=True)


def warning(text: str) -> None:
    """Print a warning on stderr; the command goes on."""
    click.echo(click.style("warning: ", fg="yellow") + text, err=True)


def error(text: str) -> None:
    """Print on stderr, in one line, why the command failed."""
    one_line = " ".join(text.split())
    click.echo(click.style("error: ", fg="red") + one_line, err=True)


def width() -> int | None:
    """Return the columns of the terminal, or $COLUMNS; None where stdout has no width."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return shutil.get_terminal_size().columns
    return None


def table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> None:
    """Print rows under a header, columns aligned, on stdout."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    style = click.style if sys.stdout.isatty() else (lambda text, **_: text)
    click.echo(style("  ".join(h.ljust(w) for h, w in zip(header, widths, strict=True)).rstrip(), bold=True))
    for row in rows:
        click.echo("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())
