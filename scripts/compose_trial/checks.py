"""What must be true of the running project."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Mapping

from compose_trial.project import Container, Failure, Project

INVOICES = 20
OURS = ("watch", "shop", "billing")  # services of our own image that stay


def require(holds: bool, problem: str) -> None:
    """Raise Failure with `problem` unless it holds."""
    if not holds:
        raise Failure(problem)


def ports_are_local(containers: Mapping[str, Container]) -> str:
    """Check that nothing is published to the network."""
    addresses = {service: each.addresses for service, each in containers.items() if each.addresses}
    require(bool(addresses), "no port is published at all")
    for service, found in addresses.items():
        require(set(found) == {"127.0.0.1"}, f"{service} publishes a port on {', '.join(found)}")
    return f"ports of {', '.join(sorted(addresses))} on 127.0.0.1 only"


def provisioned(containers: Mapping[str, Container]) -> str:
    """Check that the one-shot ended well."""
    found = containers["provision"]
    require(found.state == "exited" and found.exit_code == 0, f"provision: {found.state}, {found.exit_code}")
    return "provision ended with 0"


def not_root(project: Project, containers: Mapping[str, Container]) -> str:
    """Check that our services run as a user of their own, without a place to write or a capability."""
    for service in OURS:
        if service not in containers:
            continue
        user = project.run_in(service, "id", "-u").strip()
        require(user not in ("", "0"), f"{service} runs as root")
        status = project.run_in(service, "cat", "/proc/1/status")
        capabilities = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
        require(int(capabilities, 16) == 0, f"{service} has capabilities: {capabilities}")
    return "our containers run as a user without capabilities"


def nothing_leaks(project: Project) -> str:
    """Look for the passwords in the connectors, every log and every command line."""
    port = project.ports["OUTBOX_CONNECT_PORT"]
    url = f"http://127.0.0.1:{port}/connectors?expand=info&expand=status"
    with urllib.request.urlopen(url, timeout=10) as answer:
        connectors = answer.read().decode()
    names = ", ".join(json.loads(connectors))
    require(bool(names), "Connect has no connector")
    places = {
        "the connector's stored configuration": connectors,
        "a log": project.compose("logs", "--no-color"),
        "a command line": project.compose("top"),
    }
    for variable, password in project.passwords.items():
        for place, text in places.items():
            require(password not in text, f"{variable} is readable in {place}")
    return f"no password in connector {names}, in logs or on a command line"


def sent_events_arrive(project: Project, count: int) -> str:
    """Send events through `outboxctl send` and read them back with `outboxctl tail`."""
    sent = {
        project.run_in(
            "watch", "outboxctl", "send", "order", f"trial-{n}", "TrialOrdered", f'{{"n": {n}}}'
        ).strip()
        for n in range(count)
    }
    require(len(sent) == count, f"{count} events were sent, {len(sent)} ids printed")
    seen = until(lambda: sent <= tailed(project), 60)
    require(seen, "events that were sent do not arrive on Kafka")
    return f"{count} events sent, all arrived on Kafka"


def tailed(project: Project) -> set[str]:
    """Give the ids of all events that the trial sent, as Kafka has them now."""
    text = project.compose(
        *("exec", "--no-TTY", "watch", "outboxctl", "--json", "tail", "--from-beginning"),
        *("--aggregate", "order", "--timeout", "3"),
    )
    events = (json.loads(line) for line in text.splitlines())
    return {event["id"] for event in events if event["event_type"] == "TrialOrdered"}


def nothing_differs(project: Project) -> str:
    """Check that `plan` finds the system as the definition says: exit code 0."""
    project.compose("run", "--rm", "--no-deps", "provision", "outboxctl", "plan")
    return "outboxctl plan finds no difference"


def same_containers(before: Mapping[str, Container], after: Mapping[str, Container]) -> str:
    """Check that a second `up` replaced nothing and provisioning found nothing to do."""
    provisioned(after)
    for service, each in before.items():
        require(after[service].identity == each.identity, f"a second up replaced {service}")
    return "nothing was replaced, provision ended with 0 again"


def nothing_is_gone(project: Project, before: set[str]) -> str:
    """Check that events outlive the containers."""
    require(before <= tailed(project), "events are gone after down and up")
    return f"{len(before)} events are still there"


def effects_follow(project: Project) -> str:
    """Check that the sample billing writes an invoice for every order of the sample shop."""
    seen = until(lambda: invoices(project) >= INVOICES, 90)
    require(seen, f"the sample billing wrote {invoices(project)} invoices in 90 s")
    return f"the sample shop sells, the sample billing wrote {invoices(project)} invoices"


def invoices(project: Project) -> int:
    """Count the invoices in the database of the sample billing; none while it has no table yet."""
    session = ("psql", "--username=postgres", "--dbname=billing", "--tuples-only", "--command")
    if "invoice" not in project.run_in("postgres", *session, "SELECT to_regclass('invoice')"):
        return 0
    return int(project.run_in("postgres", *session, "SELECT count(*) FROM invoice"))


def until(reached: Callable[[], bool], seconds: float) -> bool:
    """Poll twice a second; says whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True
