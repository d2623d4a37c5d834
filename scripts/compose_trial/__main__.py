"""Run as `python -m compose_trial`; scripts/compose-test does."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from compose_trial import checks
from compose_trial.project import Failure, Project, engine_trouble

EVENTS = 5
LOG_LINES = 40
Say = Callable[[str], None]


def main() -> int:
    """Run the trial. Gives 0 when it passed or nothing could be tried, 1 when it failed."""
    trouble = engine_trouble()
    if trouble:
        print(f"compose-test: skipped, no Docker engine with Compose answers here ({trouble})")
        return 0
    signal.signal(signal.SIGTERM, _interrupt)
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"compose-test {time.monotonic() - started:4.0f} s  {text}", flush=True)

    project = Project(f"outbox-trial-{os.getpid()}")
    try:
        trial(project, say)
    except (Failure, KeyboardInterrupt) as error:
        say(f"FAILED: {str(error) or 'interrupted'}")
        explain(project)
        return 1
    finally:
        say("taking it down, volumes included")
        project.down(volumes=True)
    say("passed")
    return 0


def trial(project: Project, say: Say) -> None:
    """Everything that is tried, in order. Raises Failure at the first thing that is not as it should be."""
    say(f"building; project {project.name}")
    project.compose("build", seconds=600)
    say("docker compose up --wait")
    project.up(demo=False)
    containers = project.containers()
    say(f"up: {', '.join(sorted(containers))}")
    say(checks.provisioned(containers))
    say(checks.ports_are_local(containers))
    say(checks.sent_events_arrive(project, EVENTS))
    say(checks.nothing_differs(project))

    say("docker compose up --wait, a second time")
    project.up(demo=False)
    say(checks.same_containers(containers, project.containers()))

    say("docker compose --profile demo up --wait")
    project.up(demo=True)
    say(checks.effects_follow(project))
    say(checks.not_root(project, project.containers()))
    say(checks.nothing_leaks(project))

    say("docker compose down, then up --wait on the same volumes")
    before = checks.tailed(project)
    project.down(volumes=False)
    project.up(demo=False)
    say(checks.nothing_is_gone(project, before))
    say(checks.sent_events_arrive(project, 1))


def explain(project: Project) -> None:
    """Print how the containers are and the end of the log of each that is in trouble."""
    print(project.compose("ps", "--all", check=False), file=sys.stderr)
    for each in project.containers().values():
        if each.troubled:
            print(f"--- {each.service}: {each.state} {each.health} exit {each.exit_code}", file=sys.stderr)
            log = project.compose("logs", "--no-color", f"--tail={LOG_LINES}", each.service, check=False)
            print(log, file=sys.stderr)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
