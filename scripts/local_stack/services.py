"""Start, stop and check the services of a stack, in the order of their dependencies."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from local_stack import connect, kafka, postgres
from local_stack.errors import NotReady, StackError
from local_stack.instance import Instance
from local_stack.java import share_archive
from local_stack.ports import require_free
from local_stack.processes import Process, has_exited, kill_tree, launch, recorded, send
from local_stack.programs import require_room
from local_stack.service import START_SECONDS, STOP_SECONDS, Service

# Kafka first: it takes longest, and PostgreSQL starts while it does.
SERVICES = {service.name: service for service in (kafka.SERVICE, postgres.SERVICE, connect.SERVICE)}
NAMES = ("postgres", "kafka", "connect")
ROOM = 200 * 2**20
RETRY_SECONDS = 1.0


@dataclass(slots=True)
class ProgressLog:
    """One line per step, with the seconds since the command began."""

    stream: TextIO
    began: float

    def say(self, service: str, text: str) -> None:
        print(f"{time.monotonic() - self.began:5.1f} s  {service:<9} {text}", file=self.stream, flush=True)


@dataclass(frozen=True, slots=True)
class State:
    """The state of a service: running, failing (runs, does not answer), crashed or stopped."""

    name: str
    state: str
    detail: str
    pid: int | None
    address: str
    log: str


def running(instance: Instance, name: str) -> Process | None:
    """The process of a service, if it is alive."""
    process = recorded(instance.pid_file(name))
    return process if process is not None and process.alive else None


def with_needs(names: Collection[str]) -> list[str]:
    """The services and their dependencies, in starting order."""
    wanted = set(names)
    for name in names:
        wanted.update(SERVICES[name].needs)
    return [name for name in SERVICES if name in wanted]


def start(instance: Instance, names: Sequence[str], progress: ProgressLog) -> None:
    """Start services and wait until they are ready; those that run already are only checked.

    A service starts when its dependencies are ready. Raises StackError for the first that fails to start; the
    others keep running, and the next start finds them.
    """
    instance.make_folders()
    require_room(instance.folder, ROOM)
    for name in names:
        if running(instance, name) is None:
            for port in SERVICES[name].ports:
                require_free(name, instance.ports[port], instance)
    waiting = [name for name in SERVICES if name in names]
    starting: dict[str, tuple[Process, float]] = {}
    while waiting or starting:
        for name in [name for name in waiting if not set(SERVICES[name].needs) & {*waiting, *starting}]:
            waiting.remove(name)
            starting[name] = (_launch(instance, SERVICES[name], progress), time.monotonic())
        for name, (process, since) in list(starting.items()):
            if _predecessor_exists(instance, SERVICES[name], process, since):
                starting[name] = (_launch(instance, SERVICES[name], progress), since)
            elif _is_ready(instance, SERVICES[name], process, since, progress):
                del starting[name]
        time.sleep(0.05)


def _launch(instance: Instance, service: Service, progress: ProgressLog) -> Process:
    if (process := running(instance, service.name)) is not None:
        return process
    plan = service.prepare(instance, lambda text: progress.say(service.name, text))
    progress.say(service.name, "starting")
    return launch(plan, instance.pid_file(service.name))


def _predecessor_exists(instance: Instance, service: Service, process: Process, since: float) -> bool:
    """Whether the service exited only because processes of a crashed predecessor still exist."""
    if process.alive or time.monotonic() - since > START_SECONDS:
        return False
    log = log_lines(instance, service, process)
    found = any(mark in line for mark in service.predecessor for line in log)
    if found:
        time.sleep(RETRY_SECONDS)
    return found


def _is_ready(
    instance: Instance, service: Service, process: Process, since: float, progress: ProgressLog
) -> bool:
    """Whether the service is ready. Raises StackError if it exited or takes too long."""
    log = instance.log(service.name)
    if not process.alive:
        cause = failure_reason(instance, service, process) or "no error in its log"
        raise StackError(f"{service.name} exited while starting: {cause}", f"see {log}")
    try:
        proof = service.check(instance)
    except NotReady as error:
        if time.monotonic() - since > START_SECONDS:
            raise StackError(
                f"{service.name} runs but is not ready after {START_SECONDS:.0f} s: {error}",
                f"see {log}",
            ) from error
        return False
    progress.say(service.name, f"ready: {proof} on {service.address(instance)}")
    return True


def log_lines(instance: Instance, service: Service, process: Process) -> list[str]:
    """The lines that a process has written to the log of its service."""
    with instance.log(service.name).open("rb") as file:
        file.seek(process.log_offset)
        return file.read().decode(errors="replace").splitlines()


def failure_reason(instance: Instance, service: Service, process: Process) -> str:
    """The log line of this process that best explains why it exited; empty if there is none."""
    lines = [line for line in log_lines(instance, service, process) if " INFO " not in line]
    for mark in service.failure:
        for line in reversed(lines):
            if mark in line:
                return line.strip()[:300]
    return ""


def stop(instance: Instance, names: Collection[str], progress: ProgressLog) -> None:
    """Stop services gracefully, dependents first; kill those that do not exit in time."""
    for group in (("connect",), ("kafka", "postgres")):
        ending = [(name, process) for name in group if name in names and (process := running(instance, name))]
        for name, process in ending:
            progress.say(name, "stopping")
            send(process, SERVICES[name].stop_signal)
        for name, process in ending:
            if not has_exited(process, STOP_SECONDS):
                progress.say(name, f"did not exit in {STOP_SECONDS:.0f} s, killing it")
                kill_tree(process)
            else:
                share_archive(instance, name)
            progress.say(name, "stopped")
        for name in group:
            if name in names:
                instance.pid_file(name).unlink(missing_ok=True)


def kill(instance: Instance, names: Collection[str], progress: ProgressLog) -> None:
    """Kill services with SIGKILL, with all their processes, as in a crash. Keeps their files."""
    for name in names:
        process = running(instance, name)
        if process is None:
            raise StackError(f"{name} is not running", f"scripts/stack --name {instance.name} start {name}")
        kill_tree(process)
        instance.pid_file(name).unlink(missing_ok=True)
        progress.say(name, "killed")


def states(instance: Instance) -> Iterator[State]:
    """The state of every service; checks each one that runs."""
    for name in NAMES:
        service = SERVICES[name]
        process = recorded(instance.pid_file(name))
        state, detail = "stopped", ""
        if process is not None and not process.alive:
            state, detail = "crashed", failure_reason(instance, service, process)
            process = None
        elif process is not None:
            try:
                state, detail = "running", service.check(instance)
            except NotReady as error:
                state, detail = "failing", str(error)
        pid = None if process is None else process.pid
        yield State(name, state, detail, pid, service.address(instance), str(instance.log(name)))
