"""Checks of the running project. Each returns one line that says what was verified."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Mapping

from compose_test.project import CheckFailed, Container, Project

INVOICES = 20
WAIT_SECONDS = 240.0
OUR_SERVICES = ("watch", "shop", "billing")  # long-running services of our own image


def require(condition: bool, problem: str) -> None:
    """Raise CheckFailed with `problem` unless the condition is true."""
    if not condition:
        raise CheckFailed(problem)


def ports_are_local(containers: Mapping[str, Container]) -> str:
    """Check that every port is published on 127.0.0.1 only."""
    addresses = {service: each.addresses for service, each in containers.items() if each.addresses}
    require(bool(addresses), "no port is published at all")
    for service, found in addresses.items():
        require(set(found) == {"127.0.0.1"}, f"{service} publishes a port on {', '.join(found)}")
    return f"ports of {', '.join(sorted(addresses))} on 127.0.0.1 only"


def provision_succeeded(containers: Mapping[str, Container]) -> str:
    """Check that the one-shot service `provision` exited with 0."""
    found = containers["provision"]
    require(found.state == "exited" and found.exit_code == 0, f"provision: {found.state}, {found.exit_code}")
    return "provision exited with 0"


def not_root(project: Project, containers: Mapping[str, Container]) -> str:
    """Check that our services run as a non-root user without capabilities."""
    for service in OUR_SERVICES:
        if service not in containers:
            continue
        user = project.run_in(service, "id", "-u").strip()
        require(user not in ("", "0"), f"{service} runs as root")
        status = project.run_in(service, "cat", "/proc/1/status")
        capabilities = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
        require(int(capabilities, 16) == 0, f"{service} has capabilities: {capabilities}")
    return "our containers run as a non-root user without capabilities"


def no_password_is_readable(project: Project) -> str:
    """Check that no password is in a connector configuration, a log or a command line."""
    port = project.ports["OUTBOX_CONNECT_PORT"]
    url = f"http://127.0.0.1:{port}/connectors?expand=info&expand=status"
    with urllib.request.urlopen(url, timeout=10) as answer:
        connectors = answer.read().decode()
    names = ", ".join(json.loads(connectors))
    require(bool(names), "Connect has no connector")
    texts = {
        "the connector's stored configuration": connectors,
        "a log": project.compose("logs", "--no-color"),
        "a command line": project.compose("top"),
    }
    for variable, password in project.passwords.items():
        for source, text in texts.items():
            require(password not in text, f"{variable} is readable in {source}")
    return f"no password in connector {names}, in logs or on a command line"


def sent_events_arrive(project: Project, count: int) -> str:
    """Send events through `outboxctl send` and read them back with `outboxctl tail`."""
    sent = {
        project.run_in(
            "watch", "outboxctl", "send", "order", f"test-{n}", "TestOrdered", f'{{"n": {n}}}'
        ).strip()
        for n in range(count)
    }
    require(len(sent) == count, f"{count} events were sent, {len(sent)} ids printed")
    seen = until(lambda: sent <= events_in_kafka(project), WAIT_SECONDS)
    require(seen, "sent events did not arrive in Kafka")
    return f"{count} events sent, all arrived in Kafka"


def events_in_kafka(project: Project) -> set[str]:
    """Read from Kafka the ids of all events that this test sent."""
    text = project.compose(
        *("exec", "--no-TTY", "watch", "outboxctl", "--json", "tail", "--from-beginning"),
        *("--aggregate", "order", "--timeout", "3"),
    )
    events = (json.loads(line) for line in text.splitlines())
    return {event["id"] for event in events if event["event_type"] == "TestOrdered"}


def plan_finds_no_difference(project: Project) -> str:
    """Check that `outboxctl plan` exits with 0: the system matches the definition."""
    project.compose("run", "--rm", "--no-deps", "provision", "outboxctl", "plan")
    return "outboxctl plan finds no difference"


def same_containers(before: Mapping[str, Container], after: Mapping[str, Container]) -> str:
    """Check that a second `up` replaced no container and provisioning succeeded again."""
    provision_succeeded(after)
    for service, each in before.items():
        require(after[service].container_id == each.container_id, f"a second up replaced {service}")
    return "no container was replaced, provision exited with 0 again"


def events_survive_restart(project: Project, before: set[str]) -> str:
    """Check that events survive `down` and `up` without --volumes."""
    require(before <= events_in_kafka(project), "events are missing after down and up")
    return f"{len(before)} events are still there"


def invoices_are_written(project: Project) -> str:
    """Check that the sample billing writes an invoice for every order of the sample shop."""
    seen = until(lambda: invoices(project) >= INVOICES, WAIT_SECONDS)
    require(seen, f"the sample billing wrote {invoices(project)} invoices in {WAIT_SECONDS:.0f} s")
    return f"the sample billing wrote {invoices(project)} invoices"


def invoices(project: Project) -> int:
    """Count the invoices of the sample billing; 0 while its table does not exist."""
    session = ("psql", "--username=postgres", "--dbname=billing", "--tuples-only", "--command")
    if "invoice" not in project.run_in("postgres", *session, "SELECT to_regclass('invoice')"):
        return 0
    return int(project.run_in("postgres", *session, "SELECT count(*) FROM invoice"))


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll `condition` twice a second. Returns whether it became true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True
