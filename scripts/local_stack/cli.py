"""The command line of scripts/stack."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from local_stack import logs, postgres, services
from local_stack.errors import StackError
from local_stack.exports import exports
from local_stack.instance import DEFAULT_NAME, Instance, load
from local_stack.layout import Layout
from local_stack.ports import assign
from local_stack.processes import raise_file_limit
from local_stack.programs import MAJORS
from local_stack.removal import remove
from local_stack.services import NAMES, ProgressLog

OK, FAILED, NOT_RUNNING = 0, 1, 3
DESCRIPTION = "PostgreSQL, Kafka and Kafka Connect on this machine, without Docker."
EPILOG = """\
The data of a stack is in .stack/NAME until `reset`. The stack `local` uses the ports 15432 (PostgreSQL),
19092 (Kafka) and 18083 (Connect); every other stack gets free ports. `eval "$(scripts/stack env)"` exports
the addresses to your shell. Exit code: 0 done, 1 failed (the reason is one line on stderr), 2 wrong usage,
3 `status` found that a service which should run does not.
"""


def main(argv: Sequence[str]) -> int:
    """Run one command and return its exit code. Every failure is one line on stderr."""
    options = parser().parse_args(argv)
    prepare_process()
    try:
        return run(options)
    except StackError as error:
        return _fail(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:
        advice = "; free space on the disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        place = f"{error.filename}: " if error.filename else ""
        return _fail(f"{place}{error.strerror or error}{advice}")
    except KeyboardInterrupt:
        return _fail(
            "interrupted; started services keep running: `up` starts the rest, `down` stops them", 130
        )


def _fail(text: str, code: int = FAILED) -> int:
    print(f"stack: {text}", file=sys.stderr)
    return code


def prepare_process() -> None:
    """Remove settings of the shell that would affect the servers: libpq variables, umask, file limit."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]
    os.umask(0o022)
    raise_file_limit()


class Parser(argparse.ArgumentParser):
    """Reports wrong usage in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"stack: {message}; see {self.prog} --help\n")


def parser() -> Parser:
    shared = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    shared.add_argument("--name", help=f"name of the stack (default: $OUTBOX_STACK, else {DEFAULT_NAME})")
    shared.add_argument(
        "--postgres", type=int, choices=MAJORS, metavar="N", help="PostgreSQL major version, 14 to 18"
    )
    top = Parser(
        prog="scripts/stack",
        description=DESCRIPTION,
        epilog=EPILOG,
        parents=[shared],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> Parser:
        return commands.add_parser(name, help=text, description=text, parents=[shared])

    up = command("up", "start services (default: all) and wait until they are ready")
    up.add_argument(
        "services",
        nargs="*",
        metavar="SERVICE",
        type=_service,
        help=f"services to start: {', '.join(NAMES)} (default: all)",
    )
    up.add_argument(
        *("--set", "-s"), action="append", default=[], metavar="NAME=VALUE", type=_setting, dest="settings",
        help="set a PostgreSQL parameter and keep it for later runs (NAME= removes it)",
    )  # fmt: skip
    command("down", "stop all services; keep the data")
    status = command("status", "show the state of every service")
    status.add_argument("--json", action="store_true", help="output as JSON")
    log = command("logs", "print the logs of services")
    log.add_argument(
        "services", nargs="*", metavar="SERVICE", type=_service, help="services to print (default: all)"
    )
    log.add_argument("-f", "--follow", action="store_true", help="follow the logs")
    log.add_argument(
        "-n", "--lines", type=int, default=100, help="number of lines of each log (default: 100)"
    )
    command("env", 'print shell exports for eval "$(scripts/stack env)"')
    command("reset", "stop the stack and delete its data")
    for name, text in {
        "start": "start single services",
        "stop": "stop single services gracefully",
        "kill": "kill single services with SIGKILL, with all their processes",
    }.items():
        single = command(name, text)
        single.add_argument("services", nargs="+", metavar="SERVICE", type=_service, help=", ".join(NAMES))
    return top


def _service(text: str) -> str:
    if text not in NAMES:
        raise argparse.ArgumentTypeError(f"unknown service {text!r} (choose from {', '.join(NAMES)})")
    return text


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.replace("_", "").replace(".", "").isalnum():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name.strip().lower(), value.strip()


@contextlib.contextmanager
def locked(instance: Instance, progress: ProgressLog) -> Iterator[Instance]:
    """Hold the lock of a stack; print a line when another command holds it.

    Yields the stack with the state that it has now: the command that held the lock may have changed it.
    """
    with instance.locked(lambda: progress.say("stack", f"waiting for another command on {instance.name}")):
        yield load(instance.layout, instance.name, damaged=True)


def run(options: argparse.Namespace) -> int:
    layout = Layout()
    progress = ProgressLog(sys.stderr if options.command == "env" else sys.stdout, time.monotonic())
    name = getattr(options, "name", None) or os.environ.get("OUTBOX_STACK") or DEFAULT_NAME
    instance = load(layout, name, damaged=options.command == "reset")
    if options.command == "up":
        with locked(instance, progress) as current:
            up(current, options, progress)
        return OK
    if options.command == "reset" and instance.folder.exists():  # also one that was deleted in part
        reset(instance, options, progress)
        return OK
    if not instance.exists and options.command in ("down", "reset"):
        return OK
    _require_existing(instance)
    action = ACTIONS[options.command]
    return action(instance, options, progress) or OK


def _require_existing(instance: Instance) -> None:
    if not instance.exists:
        raise StackError(
            f"there is no stack {instance.name!r} yet", f"scripts/stack --name {instance.name} up"
        )


def up(instance: Instance, options: argparse.Namespace, progress: ProgressLog) -> None:
    """Start the requested services. Idempotent; saves the major version and the settings."""
    alive = [name for name in NAMES if services.running(instance, name)]
    before = instance.major, dict(instance.settings)
    instance.major = getattr(options, "postgres", instance.major)
    postgres.check_major(instance)
    for name, value in options.settings:
        instance.settings.pop(name, None)
        if value:
            instance.settings[name] = value
    wanted = services.with_needs(options.services or NAMES)
    instance.wanted = [name for name in NAMES if name in {*wanted, *alive}]
    instance.make_folders()
    assign(instance, idle=not alive)
    if "postgres" in alive and (instance.major, instance.settings) != before:
        progress.say("postgres", "restarting with the new settings")
        services.stop(instance, ["postgres"], progress)
    services.start(instance, wanted, progress)


def down(instance: Instance, _options: argparse.Namespace, progress: ProgressLog) -> None:
    with locked(instance, progress) as current:
        services.stop(current, NAMES, progress)
        if current.exists:
            current.wanted = []
            current.save()


def reset(instance: Instance, _options: argparse.Namespace, progress: ProgressLog) -> None:
    with locked(instance, progress) as current:
        services.stop(current, NAMES, progress)
        remove(current)
    progress.say("stack", f"{instance.name} deleted")


def start(instance: Instance, options: argparse.Namespace, progress: ProgressLog) -> None:
    with locked(instance, progress) as current:
        _require_existing(current)
        for name in services.with_needs(options.services):
            if name not in options.services and not services.running(current, name):
                raise StackError(f"{options.services[0]} needs {name}", f"scripts/stack start {name}")
        services.start(current, options.services, progress)
        current.wanted = [name for name in NAMES if name in {*current.wanted, *options.services}]
        current.save()


def stop(instance: Instance, options: argparse.Namespace, progress: ProgressLog) -> None:
    with locked(instance, progress) as current:
        services.stop(current, options.services, progress)


def kill(instance: Instance, options: argparse.Namespace, progress: ProgressLog) -> None:
    with locked(instance, progress) as current:
        services.kill(current, options.services, progress)


def status(instance: Instance, options: argparse.Namespace, _progress: ProgressLog) -> int:
    found = list(services.states(instance))
    if options.json:
        content = {
            "name": instance.name,
            "postgres_major": instance.major,
            "settings": instance.settings,
            "wanted": instance.wanted,
            "services": [dataclasses.asdict(state) for state in found],
        }
        print(json.dumps(content, indent=2))
    else:
        for state in found:
            pid = f"pid {state.pid}" if state.pid else ""
            print(f"{state.name:<9} {state.state:<8} {state.address:<16} {pid:<12} {state.detail}".rstrip())
    missing = [state for state in found if state.name in instance.wanted and state.state != "running"]
    return NOT_RUNNING if missing else OK


def env(instance: Instance, _options: argparse.Namespace, _progress: ProgressLog) -> None:
    print(exports(instance, os.environ.get("PATH", os.defpath)), end="")


def show_logs(instance: Instance, options: argparse.Namespace, _progress: ProgressLog) -> None:
    names = options.services or [name for name in NAMES if instance.log(name).exists()]
    logs.show(
        {name: instance.log(name) for name in names}, options.lines, follow=options.follow, out=sys.stdout
    )


ACTIONS: dict[str, Callable[[Instance, argparse.Namespace, ProgressLog], int | None]] = {
    "down": down,
    "reset": reset,
    "start": start,
    "stop": stop,
    "kill": kill,
    "status": status,
    "env": env,
    "logs": show_logs,
}
