"""The two stacks that the demo can run on, with one interface."""

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
OUTBOXCTL = [sys.executable, "-c", "from outbox_pipeline.cli import main; main()", "-f", DEFINITION]
GRACE_SECONDS = 30.0
PROGRESS_LINE = re.compile(r"(Healthy|Exited)\s*$")  # lines of `docker compose up` worth showing
PROVISION_LOG = ("logs", "--no-log-prefix", "--tail=2", "provision")


def clean_environment() -> dict[str, str]:
    """Copy this process's environment without variables that would point a client to another server."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PG", "OUTBOX_"))}


class DemoFailure(Exception):
    """The demo cannot continue; the message says why in one line."""


class DemoStack(ABC):
    """A stack with the shop and billing on it. `environ` holds the addresses of its servers."""

    environ: Mapping[str, str]

    @abstractmethod
    def up(self) -> None:
        """Start PostgreSQL, Kafka and Connect unless they run already, and provision the pipeline."""

    @abstractmethod
    def start_shop(self, *options: str) -> subprocess.Popen[bytes]:
        """Start the shop; the process exits when it has placed its orders."""

    @abstractmethod
    def start_billing(self) -> None:
        """Start the consumer."""

    @abstractmethod
    def kill_billing(self) -> None:
        """Kill the consumer with SIGKILL."""

    @abstractmethod
    def billing_failure(self) -> str:
        """Tell why billing exited by itself; empty while it runs."""

    @abstractmethod
    def kill_connect(self) -> None:
        """Kill Kafka Connect with SIGKILL."""

    @abstractmethod
    def start_connect(self) -> None:
        """Start Kafka Connect again and wait until it answers."""

    @abstractmethod
    def stop_applications(self) -> None:
        """Stop the consumer and the ticker with SIGTERM. Safe to repeat."""

    @abstractmethod
    def next_commands(self) -> Sequence[str]:
        """Suggest three commands for the stack, which is left running."""

    def outboxctl(self, *arguments: str, **changed: str) -> None:
        """Run outboxctl against the stack and show its output. Raises DemoFailure when it fails."""
        _run([*OUTBOXCTL, *arguments], {**clean_environment(), **self.environ, **changed})


class LocalStack(DemoStack):
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
        self.outboxctl("apply")
        self.outboxctl("inbox", "init", PGDATABASE="billing", **self._login("billing_app"))
        self._ticker = self._spawn("ticker", [*OUTBOXCTL, "watch", "--tick-only"], {})

    def start_shop(self, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "examples/shop.py", *options]
        return self._spawn("shop", command, self._login("shop_app"))

    def start_billing(self) -> None:
        self._billing = self._spawn(
            "billing", [sys.executable, "examples/billing.py"], self._login("billing_app")
        )

    def kill_billing(self) -> None:
        assert self._billing is not None
        self._billing.kill()
        self._billing.wait()

    def billing_failure(self) -> str:
        if self._billing is None or self._billing.poll() is None:
            return ""
        log = self.log_file("billing")
        return f"billing exited, see {log.relative_to(ROOT)}: {_last_line(log.read_text('utf-8', 'replace'))}"

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

    def log_file(self, name: str) -> Path:
        """Path of the log of a process of the demo."""
        return Layout().folder(self.name) / f"demo-{name}.log"

    def _login(self, role: str) -> dict[str, str]:
        return {"PGUSER": role, "PGPASSWORD": self.environ["OUTBOX_APP_PASSWORD"]}

    def _spawn(self, name: str, command: list[str], changed: Mapping[str, str]) -> subprocess.Popen[bytes]:
        log = self.log_file(name).open("ab")
        self._logs.append(log)
        environ = {**clean_environment(), **self.environ, **changed}
        return subprocess.Popen(
            command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )

    def _stack(self, *arguments: str, quiet: bool = False) -> None:
        _run(["scripts/stack", "--name", self.name, *arguments], os.environ, quiet=quiet)


class ComposeStack(DemoStack):
    """docker compose with compose.yaml, and the applications as its services shop and billing."""

    def __init__(self) -> None:
        self.environ: Mapping[str, str] = {}

    def up(self) -> None:
        self._compose("build", "--quiet", quiet=True)
        self._compose("up", "--detach", "--wait", only=PROGRESS_LINE)
        print("".join(f"      {line}\n" for line in self._output(*PROVISION_LOG).splitlines()), end="")
        self.environ = self._environment()
        self.outboxctl("inbox", "init", PGDATABASE="billing", **self._login("billing_app"))

    def start_shop(self, *options: str) -> subprocess.Popen[bytes]:
        # A one-off container that exits after its orders; the service of that name never does.
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

    def billing_failure(self) -> str:
        return ""  # Compose restarts it

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

    def _login(self, role: str) -> dict[str, str]:
        return {"PGUSER": role, "PGPASSWORD": self.environ["OUTBOX_APP_PASSWORD"]}

    def _environment(self) -> dict[str, str]:
        """Read the published ports and the passwords from Compose."""
        services: dict[str, Any] = json.loads(self._output("config", "--format", "json"))["services"]
        settings = services["postgres"]["environment"]
        host, _, port = self._output("port", "postgres", "5432").strip().rpartition(":")
        connect = self._output("port", "connect", "8083").strip()
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

    def _output(self, *arguments: str) -> str:
        command = ["docker", "compose", "--profile", "demo", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise DemoFailure(f"docker compose {' '.join(arguments)}: {_last_line(done.stderr)}")
        return done.stdout

    def _compose(self, *arguments: str, quiet: bool = False, only: re.Pattern[str] | None = None) -> None:
        # Pass the profile only with service names: a plain `up` must not start shop and billing.
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
    """Run a program and print its output indented: all of it, nothing, or each line matching `only` once."""
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
        raise DemoFailure(f"program {command[0]} not found") from None
    assert child.stdout is not None
    output: list[str] = []
    for line in child.stdout:
        new = line not in output
        output.append(line)
        if not quiet and (only is None or (new and only.search(line))):
            print(f"      {(line.strip() if only else line.rstrip())}", flush=True)
    if child.wait() != 0:
        shown = " ".join(word for word in command if word not in OUTBOXCTL) or command[0]
        raise DemoFailure(f"{shown}: {_last_line(''.join(output))}")


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")
