"""The local stack that the benchmarks run on: a fresh one of their own, stopped when they end."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STACK = ROOT / "scripts" / "stack"


@dataclass(frozen=True, slots=True)
class Servers:
    """Where the servers are, as the stack's own `env` says it."""

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
def running(name: str, *, keep: bool) -> Iterator[Servers]:
    """Start the stack called `name` and export what it says to this process; stop it at the end.

    Its data of an earlier run is removed first: an old slot would make the server keep its log, and
    every decoder would read through it.
    """
    _stack(name, "reset")
    try:
        _stack(name, "up")
        servers = Servers(exports(_stack(name, "env", captured=True)))
        os.environ.update(servers.environ)
        yield servers
    finally:
        if not keep:
            _stack(name, "down")


def _stack(name: str, *words: str, captured: bool = False) -> str:
    command = [str(STACK), "--name", name, *words]
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE if captured else None)
    return done.stdout or ""


def exports(text: str) -> dict[str, str]:
    """Read `export NAME=value` lines as a shell would; the others are not for us."""
    lines = (shlex.split(line) for line in text.splitlines() if line.startswith("export "))
    return dict(word.split("=", 1) for _, word in lines)
