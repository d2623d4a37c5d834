"""Run as `python -m compose_test`; scripts/compose-test does."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from compose_test import checks
from compose_test.project import CheckFailed, Project, engine_problem

EVENTS = 5
LOG_LINES = 40
Log = Callable[[str], None]


def main() -> int:
    """Run the checks. Returns 0 when they passed or were skipped, 1 when one failed."""
    problem = engine_problem()
    if problem:
        print(f"compose-test: skipped, no Docker engine with Compose answers here ({problem})")
        return 0
    signal.signal(signal.SIGTERM, _interrupt)
    started = time.monotonic()

    def log(text: str) -> None:
        print(f"compose-test {time.monotonic() - started:4.0f} s  {text}", flush=True)

    project = Project(f"outbox-test-{os.getpid()}")
    try:
        run_checks(project, log)
    except (CheckFailed, KeyboardInterrupt) as error:
        log(f"FAILED: {str(error) or 'interrupted'}")
        print_diagnostics(project)
        return 1
    finally:
        log("docker compose down --volumes")
        project.down(volumes=True)
    log("passed")
    return 0


def run_checks(project: Project, log: Log) -> None:
    """Start the project and run every check in order. Raises CheckFailed at the first that fails."""
    log(f"building; project {project.name}")
    project.compose("build", seconds=600)
    log("docker compose up --wait")
    project.up(demo=False)
    containers = project.containers()
    log(f"up: {', '.join(sorted(containers))}")
    log(checks.provision_succeeded(containers))
    log(checks.ports_are_local(containers))
    log(checks.sent_events_arrive(project, EVENTS))
    log(checks.plan_finds_no_difference(project))

    log("docker compose up --wait, a second time")
    project.up(demo=False)
    log(checks.same_containers(containers, project.containers()))

    log("docker compose --profile demo up --wait")
    project.up(demo=True)
    log(checks.invoices_are_written(project))
    log(checks.not_root(project, project.containers()))
    log(checks.no_password_is_readable(project))

    log("docker compose down, then up --wait on the same volumes")
    before = checks.events_in_kafka(project)
    project.down(volumes=False)
    project.up(demo=False)
    log(checks.events_survive_restart(project, before))
    log(checks.sent_events_arrive(project, 1))


def print_diagnostics(project: Project) -> None:
    """Print the state of all containers and the last log lines of each unhealthy one."""
    print(project.compose("ps", "--all", check=False), file=sys.stderr)
    for each in project.containers().values():
        if each.unhealthy:
            print(f"--- {each.service}: {each.state} {each.health} exit {each.exit_code}", file=sys.stderr)
            log = project.compose("logs", "--no-color", f"--tail={LOG_LINES}", each.service, check=False)
            print(log, file=sys.stderr)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
