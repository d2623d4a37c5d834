"""The two stacks that the demo can run on, with the same verbs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from local_stack.exports import variables
from local_stack.instance import load
from local_stack.layout import Layout

ROOT = Path(__file__).resolve().parents[2]
DEFINITION = "connectors/outbox.yaml"
CONTROL = [sys.executable, "-c", "from outbox_pipeline.cli import main; main()", "-f", DEFINITION]
GRACE_SECONDS = 30.0
ENDED = re.compile(r"(Healthy|Exited)\s*$")  # the lines of `docker compose up` that tell how far it has come
PROVISION_LOG = ("logs", "--no-log-prefix", "--tail=2", "provision")


def surroundings() -> dict[str, str]:
    """Give this process's environment without what could lead a client to another server."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PG", "OUTBOX_"))}


class Broken(Exception):
    """The demo cannot go on: one line says why."""


class Road(ABC):
    """A stack, the shop and billing on it. `environ` reaches its servers from this machine."""

    environ: Mapping[str, str]

    @abstractmethod
    def up(self) -> None:
        """Start PostgreSQL, Kafka and Connect, or find them running."""

    @abstractmethod
    def start_shop(self, *options: str) -> subprocess.Popen[bytes]:
        """Start the shop; the process ends when it has placed its orders."""

    @abstractmethod
    def start_billing(self) -> None:
        """Start the consumer."""

    @abstractmethod
    def kill_billing(self) -> None:
        """End the consumer with SIGKILL."""

    @abstractmethod
    def trouble(self) -> str:
        """Say why billing has ended by itself; empty while it runs."""

    @abstractmethod
    def kill_connect(self) -> None:
        """End Kafka Connect with SIGKILL."""

    @abstractmethod
    def start_connect(self) -> None:
        """Start Kafka Connect again and wait until it answers."""

    @abstractmethod
    def stop_applications(self) -> None:
        """End the consumer and the ticker in order. Safe to repeat."""

    @abstractmethod
    def next_commands(self) -> Sequence[str]:
        """Name three commands to try on the stack that is left running."""

    def control(self, *arguments: str, **changed: str) -> None:
        """Run outboxctl against the stack and show what it says. Raises Broken when it fails."""
        _run([*CONTROL, *arguments], {**surroundings(), **self.environ, **changed})


class Local(Road):
    """scripts/stack, and the applications as processes of this machine."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.environ: Mapping[str, str] = {}
        self._logs: list[IO[bytes]] = []
        self._billing: subprocess.Popen[bytes] | None = None
        self._ticker: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        self._stack("up")
        self.environ = variables(load(Layout(), self.name))
        self.control("apply")
        self.control("inbox", "init", PGDATABASE="billing", **self._as("billing_app"))
        self._ticker = self._spawn("ticker", [*CONTROL, "watch", "--tick-only"], {})

    def start_shop(self, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "examples/shop.py", *options]
        return self._spawn("shop", command, self._as("shop_app"))

    def start_billing(self) -> None:
        self._billing = self._spawn(
            "billing", [sys.executable, "examples/billing.py"], self._as("billing_app")
        )

    def kill_billing(self) -> None:
        assert self._billing is not None
        self._billing.kill()
        self._billing.wait()

    def trouble(self) -> str:
        if self._billing is None or self._billing.poll() is None:
            return ""
        log = self.log("billing")
        return (
            f"billing has ended, see {log.relative_to(ROOT)}: {_last_line(log.read_text('utf-8', 'replace'))}"
        )

    def kill_connect(self) -> None:
        self._stack("kill", "connect", quiet=True)

    def start_connect(self) -> None:
        self._stack("start", "connect", quiet=True)

    def stop_applications(self) -> None:
        for child in (self._billing, self._ticker):
            if child is not None and child.poll() is None:
                child.terminate()
                try:
                    child.wait(GRACE_SECONDS)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
        for log in self._logs:
            log.close()
        self._logs.clear()

    def next_commands(self) -> Sequence[str]:
        name = "" if self.name == "local" else f" --name {self.name}"
        return (
            f'eval "$(scripts/stack{name} env)"; outboxctl -f {DEFINITION} tail --from-beginning --max 5',
            f"outboxctl -f {DEFINITION} send order 42 OrderPlaced '{{\"total\": 99}}'",
            f"scripts/stack{name} down",
        )

    def log(self, name: str) -> Path:
        """Where a process of the demo writes what it has to say."""
        return Layout().folder(self.name) / f"demo-{name}.log"

    def _as(self, role: str) -> dict[str, str]:
        return {"PGUSER": role, "PGPASSWORD": self.environ["OUTBOX_APP_PASSWORD"]}

    def _spawn(self, name: str, command: list[str], changed: Mapping[str, str]) -> subprocess.Popen[bytes]:
        log = self.log(name).open("ab")
        self._logs.append(log)
        environ = {**surroundings(), **self.environ, **changed}
        return subprocess.Popen(
            command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )

    def _stack(self, *arguments: str, quiet: bool = False) -> None:
        _run(["scripts/stack", "--name", self.name, *arguments], os.environ, quiet=quiet)


class Compose(Road):
    """docker compose with compose.yaml, and the applications as its services shop and billing."""

    def __init__(self) -> None:
        self.environ: Mapping[str, str] = {}

    def up(self) -> None:
        self._compose("build", "--quiet", quiet=True)
        self._compose("up", "--detach", "--wait", only=ENDED)
        print("".join(f"      {line}\n" for line in self._asked(*PROVISION_LOG).splitlines()), end="")
        self.environ = self._environment()
        self.control("inbox", "init", PGDATABASE="billing", **self._as("billing_app"))

    def start_shop(self, *options: str) -> subprocess.Popen[bytes]:
        # One that stops after its orders, beside or instead of the service that never stops.
        run = ["run", "--rm", "--no-deps", "--no-TTY", "shop", "python", "examples/shop.py", *options]
        return subprocess.Popen(
            ["docker", "compose", "--profile", "demo", *run],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def start_billing(self) -> None:
        self._compose("up", "--detach", "--no-deps", "billing", quiet=True)

    def kill_billing(self) -> None:
        self._compose("kill", "--signal", "KILL", "billing", quiet=True)

    def trouble(self) -> str:
        return ""  # Compose starts it again

    def kill_connect(self) -> None:
        self._compose("kill", "--signal", "KILL", "connect", quiet=True)

    def start_connect(self) -> None:
        self._compose("up", "--detach", "--no-deps", "--wait", "connect", quiet=True)

    def stop_applications(self) -> None:
        if self.environ:
            self._compose("stop", "billing", quiet=True)

    def next_commands(self) -> Sequence[str]:
        return (
            "docker compose exec watch outboxctl tail --from-beginning --max 5",
            "docker compose --profile demo up --detach --wait",
            "docker compose --profile demo down",
        )

    def _as(self, role: str) -> dict[str, str]:
        return {"PGUSER": role, "PGPASSWORD": self.environ["OUTBOX_APP_PASSWORD"]}

    def _environment(self) -> dict[str, str]:
        """Find where Compose has published the ports, and the passwords it has given out."""
        services: dict[str, Any] = json.loads(self._asked("config", "--format", "json"))["services"]
        settings = services["postgres"]["environment"]
        host, _, port = self._asked("port", "postgres", "5432").strip().rpartition(":")
        connect = self._asked("port", "connect", "8083").strip()
        listeners = str(services["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"])
        outside = next(part for part in listeners.split(",") if part.startswith("OUTSIDE://"))
        return {
            "PGHOST": host,
            "PGPORT": port,
            "PGUSER": "postgres",
            "PGPASSWORD": settings["POSTGRES_PASSWORD"],
            "PGDATABASE": "shop",
            "OUTBOX_KAFKA_BOOTSTRAP": outside.removeprefix("OUTSIDE://"),
            "OUTBOX_CONNECT_URL": f"http://{connect}",
            "OUTBOX_APP_PASSWORD": settings["OUTBOX_APP_PASSWORD"],
        }

    def _asked(self, *arguments: str) -> str:
        command = ["docker", "compose", "--profile", "demo", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Broken(f"docker compose {' '.join(arguments)}: {_last_line(done.stderr)}")
        return done.stdout

    def _compose(self, *arguments: str, quiet: bool = False, only: re.Pattern[str] | None = None) -> None:
        # Only the services named get the profile: `up` without names must not start shop and billing.
        named = any(word in ("billing", "connect") for word in arguments)
        profile = ["--profile", "demo"] if named else []
        _run(["docker", "compose", *profile, *arguments], os.environ, quiet=quiet, only=only)


def _run(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    quiet: bool = False,
    only: re.Pattern[str] | None = None,
) -> None:
    """Run a program and show what it says, indented: all of it, nothing, or `only` such lines, once each."""
    try:
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except FileNotFoundError:
        raise Broken(f"there is no program {command[0]} here") from None
    assert child.stdout is not None
    said: list[str] = []
    for line in child.stdout:
        new = line not in said
        said.append(line)
        if not quiet and (only is None or (new and only.search(line))):
            print(f"      {(line.strip() if only else line.rstrip())}", flush=True)
    if child.wait() != 0:
        shown = " ".join(word for word in command if word not in CONTROL) or command[0]
        raise Broken(f"{shown}: {_last_line(''.join(said))}")


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no reason given")
