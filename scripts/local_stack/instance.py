"""One named stack and its state, which is kept in a file between commands."""

from __future__ import annotations

import contextlib
import fcntl
import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from local_stack.errors import StackError
from local_stack.layout import Layout, checked_name
from local_stack.processes import create, replace

DEFAULT_NAME = "local"
DEFAULT_MAJOR = 18
PASSWORDS = ("postgres", "cdc", "app")


@dataclass(slots=True)
class Instance:
    """A stack and its state: ports, PostgreSQL major version, extra settings, services of the last `up`."""

    layout: Layout
    name: str
    ports: dict[str, int] = field(default_factory=dict)
    major: int = DEFAULT_MAJOR
    settings: dict[str, str] = field(default_factory=dict)
    wanted: list[str] = field(default_factory=list)
    postgres_base: Path | None = None

    @property
    def folder(self) -> Path:
        return self.layout.folder(self.name)

    @property
    def exists(self) -> bool:
        return self._state.exists()

    @property
    def _state(self) -> Path:
        return self.folder / "state.json"

    @property
    def secrets_file(self) -> Path:
        """Java properties, readable by this user only; Connect's file provider may read it."""
        return self.folder / "secrets.properties"

    def log(self, service: str) -> Path:
        return self.folder / "logs" / f"{service}.log"

    def pid_file(self, service: str) -> Path:
        return self.folder / "run" / f"{service}.json"

    def config(self, file: str) -> Path:
        return self.folder / "config" / file

    def data(self, service: str) -> Path:
        """The data directory of a service. PostgreSQL's may be outside the clone."""
        base = self.folder
        if service == "postgres" and self.postgres_base is not None:
            base = self.postgres_base / self.name
        return base / "data" / service

    def make_folders(self) -> None:
        for part in ("logs", "run", "config", "data"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)

    def save(self) -> None:
        content = {
            "ports": self.ports,
            "postgres": self.major,
            "settings": self.settings,
            "wanted": self.wanted,
            "postgres_base": None if self.postgres_base is None else str(self.postgres_base),
        }
        replace(self._state, json.dumps(content, indent=2) + "\n")

    def render(self, template: str, target: str, **names: object) -> Path:
        """Fill a template of connectors/runtime into the stack's own configuration folder."""
        text = Template((self.layout.runtime / template).read_text())
        path = self.config(target)
        replace(path, text.substitute({f"{name}_port": port for name, port in self.ports.items()}, **names))
        return path

    def passwords(self) -> dict[str, str]:
        """The passwords of this stack, generated once: superuser, connector, applications.

        Commands that hold no lock (`env`, `status`) may call this at the same time as `up`; all get the same.
        """
        if not self.secrets_file.exists():
            lines = [f"{name}={secrets.token_hex(16)}" for name in PASSWORDS]
            create(self.secrets_file, "\n".join(lines) + "\n", mode=0o600)
        pairs = (line.partition("=") for line in self.secrets_file.read_text().splitlines())
        return {name: value for name, _, value in pairs}

    @contextlib.contextmanager
    def locked(self, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """One command at a time may change a stack. The lock ends with the process that holds it."""
        with file_lock(self.layout.stacks / f".{self.name}.lock", waiting):
            yield


@contextlib.contextmanager
def file_lock(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold an exclusive lock on a file; call `waiting` first if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is not None:
                waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def load(layout: Layout, name: str, *, damaged: bool = False) -> Instance:
    """The stack called `name` with its saved state; the state of a new one is empty.

    Raises StackError when the state cannot be read, unless `damaged` is set (to stop and delete it).
    """
    instance = Instance(layout, checked_name(name))
    if not instance.exists:
        return instance
    state = instance.folder / "state.json"
    try:
        content = json.loads(state.read_text())
    except FileNotFoundError:  # a `reset` in another process has just deleted it
        return instance
    except ValueError as error:
        if damaged:
            return instance
        raise _unreadable(state, error) from error
    try:
        instance.ports = content["ports"]
        instance.major = content["postgres"]
        instance.settings = content["settings"]
        instance.wanted = content["wanted"]
        base = content["postgres_base"]
    except (KeyError, TypeError) as error:
        if damaged:
            return instance
        raise _unreadable(state, error) from error
    instance.postgres_base = None if base is None else Path(base)
    return instance


def _unreadable(state: Path, error: Exception) -> StackError:
    remedy = f"start over: scripts/stack --name {state.parent.name} reset"
    return StackError(f"{state} cannot be read ({error})", remedy)
