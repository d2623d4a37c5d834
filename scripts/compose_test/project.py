"""A Compose project for the test, with its own name, free ports and new passwords."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PORTS = ("OUTBOX_POSTGRES_PORT", "OUTBOX_KAFKA_PORT", "OUTBOX_CONNECT_PORT", "OUTBOX_WATCH_PORT")
PASSWORDS = ("OUTBOX_POSTGRES_PASSWORD", "OUTBOX_CDC_PASSWORD", "OUTBOX_APP_PASSWORD")
DEMO = "demo"  # the profile with the sample shop and its billing


class CheckFailed(Exception):
    """A check failed; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container of the project as `docker compose ps` describes it."""

    service: str
    name: str
    container_id: str
    state: str  # running, exited, ...
    health: str  # healthy, unhealthy, starting, or empty where there is no check
    exit_code: int
    addresses: tuple[str, ...]  # of this machine, to which ports are published

    @property
    def unhealthy(self) -> bool:
        """Whether the log of this container may explain a failure."""
        if self.state == "running":
            return self.health not in ("healthy", "")
        return self.state != "created" and self.exit_code != 0


class Project:
    """Runs `docker compose` with compose.yaml. Call `down(volumes=True)` at the end to remove its data."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.passwords = {variable: secrets.token_hex(16) for variable in PASSWORDS}
        variables = port_variables((ROOT / "compose.yaml").read_text("utf-8"))
        self.ports = dict(zip(variables, _free_ports(len(variables)), strict=True))
        ports = {variable: str(port) for variable, port in self.ports.items()}
        self._environ: Mapping[str, str] = {**os.environ, **self.passwords, **ports}

    def compose(self, *words: str, seconds: float = 120, check: bool = True, demo: bool = True) -> str:
        """Run one `docker compose` command and return its stdout. Raises CheckFailed."""
        command = ["docker", "compose", "--project-name", self.name]
        command += [*(["--profile", DEMO] if demo else []), *words]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=self._environ, capture_output=True, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            raise CheckFailed(f"docker compose {' '.join(words)}: timed out after {seconds:.0f} s") from None
        if check and done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
            raise CheckFailed(f"docker compose {' '.join(words)}: {said[-1].strip()}")
        return done.stdout

    def up(self, *, demo: bool, seconds: int = 240) -> None:
        """Run `up --wait`: start the services and wait until they are healthy."""
        self.compose("up", "--detach", "--wait", f"--wait-timeout={seconds}", seconds=seconds + 60, demo=demo)

    def run_in(self, service: str, *command: str, seconds: float = 90) -> str:
        """Run a command in the running container of a service."""
        return self.compose("exec", "--no-TTY", service, *command, seconds=seconds)

    def containers(self) -> dict[str, Container]:
        """List the project's containers by service."""
        found = (container(document) for document in documents(self.compose("ps", "--all", "--format=json")))
        return {each.service: each for each in found}

    def down(self, *, volumes: bool) -> None:
        """Remove containers and network, and with `volumes` all data."""
        self.compose("down", "--remove-orphans", *(["--volumes"] if volumes else []), seconds=180)


def port_variables(text: str) -> list[str]:
    """List the variables that choose ports of this machine in a compose file, each once."""
    return sorted(set(re.findall(r"\$\{(OUTBOX_\w+_PORT):-\d+\}", text)))


def documents(text: str) -> list[dict[str, Any]]:
    """Read `--format=json`: one array, or one object per line, depending on Compose's version."""
    stripped = text.strip()
    if stripped.startswith("["):
        listed: list[dict[str, Any]] = json.loads(stripped)
        return listed
    return [json.loads(line) for line in stripped.splitlines()]


def container(document: Mapping[str, Any]) -> Container:
    """Read one object of `docker compose ps`."""
    published = (entry for entry in document.get("Publishers") or () if entry.get("PublishedPort"))
    return Container(
        service=document["Service"],
        name=document["Name"],
        container_id=document["ID"],
        state=document["State"],
        health=document.get("Health", ""),
        exit_code=int(document.get("ExitCode", 0)),
        addresses=tuple(entry["URL"] for entry in published),
    )


def engine_problem() -> str:
    """Tell why no Docker engine can be used; empty when one can."""
    for command in (["docker", "version"], ["docker", "compose", "version"]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=15)
        except FileNotFoundError:
            return "no docker program"
        except subprocess.TimeoutExpired:
            return f"{' '.join(command)} does not answer"
        if done.returncode != 0:
            lines: Sequence[str] = done.stderr.strip().splitlines() or ["failed"]
            return lines[-1]
    return ""


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in taken]
