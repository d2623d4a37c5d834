"""compose.yaml: rules for its text, and the whole project started where a Docker engine answers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from compose_test.project import container, documents, engine_problem, port_variables

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "compose.yaml").read_text("utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = sorted(name for name, service in SERVICES.items() if "build" in service)
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")


@pytest.mark.parametrize("name", SERVICES)
def test_every_port_is_published_to_this_machine_only(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert isinstance(port, str)
        assert port.startswith("127.0.0.1:"), f"{name} publishes {port} to the network"


def test_every_port_can_be_chosen() -> None:
    """So that two projects, as the test's and a running one, live side by side."""
    chosen = port_variables(TEXT)
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(chosen) == len(published)
    for port in published:
        assert re.fullmatch(r"127\.0\.0\.1:\$\{OUTBOX_\w+_PORT:-\d+\}:\d+", port), port


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_has_a_version(name: str) -> None:
    _, _, tag = SERVICES[name]["image"].rpartition(":")
    assert re.search(r"\d", tag), f"{name} takes whatever {SERVICES[name]['image']} is today"


def test_the_base_image_has_a_version_and_needs_no_frontend() -> None:
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.M)
    assert set(bases) == {"python:3.13-slim"}
    assert "# syntax=" not in DOCKERFILE, "that line asks a registry for a frontend at each build"


def test_versions_are_those_of_the_local_stack() -> None:
    pom = (ROOT / "connectors" / "runtime" / "pom.xml").read_text("utf-8")
    for service, version in ("kafka", "4.3.1"), ("connect", "3.7.0.Final"):
        assert SERVICES[service]["image"].endswith(f":{version}")
        assert f">{version}<" in pom, "compose.yaml and the local stack run different versions"


def test_passwords_come_from_the_environment_with_demo_defaults() -> None:
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            if "PASSWORD" in variable:
                pattern = r"\$\{OUTBOX_(POSTGRES|CDC|APP)_PASSWORD:-demo-(postgres|cdc|app)\}"
                assert re.fullmatch(pattern, str(value)), f"{name}: {variable} holds {value}"


def test_no_password_on_a_command_line() -> None:
    for name, service in SERVICES.items():
        words = [
            *map(str, service.get("command", [])),
            *map(str, service.get("healthcheck", {}).get("test", [])),
        ]
        assert not any("PASSWORD" in word for word in words), name


@pytest.mark.parametrize("name", ["postgres", "kafka", "connect"])
def test_servers_have_a_health_check_that_lets_them_start(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert {"test", "interval", "timeout", "start_period", "start_interval"} <= check.keys()
    assert SERVICES[name]["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", SERVICES)
def test_memory_and_logs_are_bounded(name: str) -> None:
    assert "mem_limit" in SERVICES[name]
    assert SERVICES[name]["logging"]["options"].keys() >= {"max-size", "max-file"}


@pytest.mark.parametrize("name", OURS)
def test_our_services_can_write_nothing_and_gain_nothing(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert re.search(r"^USER \d+$", DOCKERFILE, re.M), "a number, so that it can be seen not to be root"


def test_the_watch_waits_for_the_provisioning() -> None:
    """A one-shot that nothing waits for makes `up --wait` fail when it ends."""
    waits = SERVICES["watch"]["depends_on"]["provision"]["condition"]
    assert waits == "service_completed_successfully"


def test_the_worker_reads_only_our_variables_and_its_secrets_folder() -> None:
    environment = SERVICES["connect"]["environment"]
    assert environment["CONNECT_CONFIG_PROVIDERS_ENV_PARAM_ALLOWLIST_PATTERN"] == "OUTBOX_.*"
    assert environment["CONNECT_CONFIG_PROVIDERS_FILE_PARAM_ALLOWED_PATHS"] == "/run/secrets"


def test_ps_is_read_in_both_forms_that_compose_prints() -> None:
    one = '{"Service": "a", "Name": "p-a-1", "ID": "1", "State": "running", "ExitCode": 0}'
    assert documents(f"[{one}]") == documents(one + "\n") == documents(f"{one}\n")
    assert documents("") == []
    published = {"URL": "127.0.0.1", "PublishedPort": 1, "TargetPort": 1}
    exposed = {"URL": "", "PublishedPort": 0, "TargetPort": 2}
    read = container({**documents(one)[0], "Health": "unhealthy", "Publishers": [published, exposed]})
    assert read.addresses == ("127.0.0.1",)
    assert read.unhealthy


@pytest.mark.parametrize(
    ("state", "health", "exit_code", "unhealthy"),
    [
        ("running", "", 0, False),
        ("running", "healthy", 0, False),
        ("running", "starting", 0, True),
        ("restarting", "", 2, True),
        ("exited", "", 0, False),
        ("exited", "", 6, True),
        ("created", "", 0, False),  # still waiting for another, which is the unhealthy one
    ],
)
def test_a_failure_shows_the_logs_of_unhealthy_containers(
    state: str, health: str, exit_code: int, unhealthy: bool
) -> None:
    document = {"Service": "a", "Name": "p-a-1", "ID": "1", "State": state, "Health": health}
    assert container({**document, "ExitCode": exit_code}).unhealthy is unhealthy


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_project_comes_up_carries_events_and_goes_down() -> None:
    problem = engine_problem()
    if problem:
        pytest.skip(f"no Docker engine with Compose answers: {problem}")
    done = subprocess.run([ROOT / "scripts" / "compose-test"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("passed")
