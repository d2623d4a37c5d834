"""The local stack of the benchmarks: a fresh one, stopped at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from local_stack.exports import variables
from local_stack.instance import load
from local_stack.layout import Layout

ROOT = Layout().repository


@dataclass(frozen=True, slots=True)
class Servers:
    """The addresses of the servers, as `scripts/stack env` exports them."""

    environ: Mapping[str, str]

    @property
    def bootstrap(self) -> str:
        """Kafka's address."""
        return self.environ["OUTBOX_KAFKA_BOOTSTRAP"]

    def dsn(self, database: str) -> str:
        """The superuser's connection string for a database."""
        e = self.environ
        return (
            f"host={e['PGHOST']} port={e['PGPORT']} user={e['PGUSER']} password={e['PGPASSWORD']}"
            f" dbname={database}"
        )


@contextmanager
def running(name: str, services: Sequence[str], *, keep: bool) -> Iterator[Servers]:
    """Start services of the stack `name` and export its variables to this process; stop it at the end.

    Its old data is deleted first: an old slot would make the server keep write-ahead log that every
    decoder would have to read.
    """
    _stack(name, "reset")
    try:
        _stack(name, "up", *services)
        servers = Servers(variables(load(Layout(), name)))
        os.environ.update(servers.environ)
        yield servers
    finally:
        if not keep:
            _stack(name, "down")


@contextmanager
def started(name: str, services: Sequence[str], settings: Sequence[str]) -> Iterator[Servers]:
    """Start a stack with PostgreSQL settings of its own, and delete it at the end."""
    _stack(name, "reset")
    try:
        _stack(name, "up", *(word for setting in settings for word in ("--set", setting)), *services)
        yield Servers(variables(load(Layout(), name)))
    finally:
        _stack(name, "reset")


def _stack(name: str, *words: str) -> None:
    subprocess.run([str(ROOT / "scripts" / "stack"), "--name", name, *words], check=True, stdout=sys.stderr)
