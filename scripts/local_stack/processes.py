"""Start a server that outlives this process, find it again by its pid file, and stop it.

A pid may have been reused by another process. So a pid file also holds the start time of the process, and a
process is ours only if both match.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from local_stack.accounts import Account
from local_stack.errors import StackError

PROC = Path("/proc")
KILL_SECONDS = 60.0  # until a killed process has exited: the kernel needs time for it when memory is short


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a server."""

    argv: Sequence[str]
    environ: Mapping[str, str]
    cwd: Path
    log: Path
    account: Account | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """A server: its pid, its start time, and the offset in the log where its output begins."""

    pid: int
    started: str
    log_offset: int

    @property
    def alive(self) -> bool:
        return started(self.pid) == self.started


def started(pid: int) -> str | None:
    """The start time of process `pid`, as text that is unique across reboots; None if it is dead."""
    if PROC.joinpath("self/stat").exists():
        fields = _stat(pid)
        # A JVM's first thread is a zombie while others still hold its sockets and files.
        if fields is None or fields[0] == "X" or (fields[0] == "Z" and int(fields[17]) <= 1):
            return None
        return f"{PROC.joinpath('sys/kernel/random/boot_id').read_text().strip()}/{fields[19]}"
    done = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, since = done.stdout.strip().partition(" ")
    return since.strip() or None if state and not state.startswith("Z") else None


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat behind the name (which may hold anything): state, ppid, ..."""
    try:
        return PROC.joinpath(str(pid), "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def exists(pid: int) -> bool:
    """Whether the kernel knows a process of this number, including a dead one that was not reaped yet."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def command_line(pid: int) -> str:
    """The arguments that a process was started with, as one text; empty when it is dead."""
    if PROC.joinpath("self/stat").exists():
        try:
            return (
                PROC.joinpath(str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
        except (FileNotFoundError, ProcessLookupError):
            return ""
    done = subprocess.run(["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout


def launch(plan: Launch, pid_file: Path) -> Process:
    """Start a server in its own session and write its pid file. SIGINT and SIGTERM wait until then."""
    with uninterrupted(), plan.log.open("ab") as log:
        offset = log.seek(0, os.SEEK_END)
        account = plan.account
        popen = subprocess.Popen(
            plan.argv,
            env=dict(plan.environ),
            cwd=plan.cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )
        process = Process(popen.pid, started(popen.pid) or "dead", offset)
        popen.returncode = 0  # not waited for: the server outlives this process
        content = {"pid": process.pid, "started": process.started, "log_offset": offset}
        replace(pid_file, json.dumps(content))
    return process


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back. Handlers, not a mask: children would inherit a mask."""
    pending: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        pending.append(number)

    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if pending:
        signal.raise_signal(pending[0])


def replace(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file atomically."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def create(path: Path, text: str, mode: int = 0o644) -> None:
    """Create a file atomically; keep the one that another process has created first."""
    draft = path.with_name(f".{path.name}.new.{os.getpid()}")
    replace(draft, text, mode)
    try:
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def recorded(pid_file: Path) -> Process | None:
    """The process of a pid file, dead or alive; None if the file is missing or damaged."""
    try:
        content = json.loads(pid_file.read_text())
        return Process(content["pid"], content["started"], content["log_offset"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def raise_file_limit() -> None:
    """Raise the limit of open files to the hard limit: Kafka needs three files per partition."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, at this moment."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    todo = [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _parents() -> Iterator[tuple[int, int]]:
    if PROC.joinpath("self/stat").exists():
        for entry in PROC.iterdir():
            if entry.name.isdigit() and (fields := _stat(int(entry.name))) is not None:
                yield int(entry.name), int(fields[1])
        return
    done = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        child, parent = line.split()
        yield int(child), int(parent)


def send(process: Process, number: signal.Signals) -> None:
    """Send a signal, if the process is still the one that was started."""
    if process.alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def has_exited(process: Process, seconds: float) -> bool:
    """Wait until the process has exited. Returns False if it still runs after `seconds`."""
    deadline = time.monotonic() + seconds
    while process.alive:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def kill_tree(process: Process) -> None:
    """Kill a process and all its descendants with SIGKILL, and wait until all have exited.

    The process is stopped first, so that it can neither start another child nor react to the exit of one.
    Raises StackError when one of them still exists after KILL_SECONDS.
    """
    if not process.alive:
        return
    _suspend(process)
    family = [
        process,
        *(Process(pid, since, 0) for pid in descendants(process.pid) if (since := started(pid))),
    ]
    for member in family:
        send(member, signal.SIGKILL)
    deadline = time.monotonic() + KILL_SECONDS
    left = [member.pid for member in family if not has_exited(member, deadline - time.monotonic())]
    if left:
        raise StackError(f"killed, but still there after {KILL_SECONDS:.0f} s: pid {left[0]}", "try again")


def _suspend(process: Process) -> None:
    """Send SIGSTOP and wait until the process is stopped: on a busy machine it runs on for a moment."""
    send(process, signal.SIGSTOP)
    deadline = time.monotonic() + KILL_SECONDS
    while process.alive and not _stopped(process.pid) and time.monotonic() < deadline:
        time.sleep(0.01)


def _stopped(pid: int) -> bool:
    if PROC.joinpath("self/stat").exists():
        fields = _stat(pid)
        return fields is not None and fields[0] in ("T", "t")
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip().startswith("T")
