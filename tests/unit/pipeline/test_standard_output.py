"""Readers that leave: of stdout, of stderr, of both; and standard streams that are closed from the start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from waiting import PATIENCE_SECONDS

PROGRAM = """
import os, signal, subprocess, sys
from outbox_pipeline.standard_output import outlive_readers, reader_gone
outlive_readers()
print("x" * 100_000, flush=True)
print("more")
print("to whom it may concern", file=sys.stderr)
os.write(int(sys.argv[1]), b"gone" if reader_gone() else b"read")
sys.exit(5)
"""


def written(stdout: int, stderr: int = subprocess.PIPE) -> tuple[int, bytes, bytes]:
    """Run the program; give its exit code, its stderr if that is a pipe of ours, and what it found out."""
    read, write = os.pipe()
    command = [sys.executable, "-c", PROGRAM, str(write)]
    with subprocess.Popen(command, pass_fds=[write], stdout=stdout, stderr=stderr) as child:
        os.close(write)
        _, err = child.communicate(timeout=PATIENCE_SECONDS)
    with os.fdopen(read, "rb") as found:
        return child.returncode, err or b"", found.read()


@pytest.fixture
def without_reader() -> Iterator[int]:
    read, write = os.pipe()
    os.close(read)
    yield write
    os.close(write)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_command_whose_reader_left_ends_with_its_own_code(
    without_reader: int, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    assert written(stdout=without_reader) == (5, b"to whom it may concern\n", b"gone")


def test_nobody_reads_stderr(without_reader: int) -> None:
    assert written(stdout=subprocess.DEVNULL, stderr=without_reader) == (5, b"", b"read")


def test_nobody_reads_anything(without_reader: int) -> None:
    assert written(stdout=without_reader, stderr=without_reader) == (5, b"", b"gone")


def test_streams_that_are_closed_take_no_connection_for_themselves() -> None:
    check = (
        "import os, socket, sys\n"
        "from outbox_pipeline.standard_output import outlive_readers\n"
        "outlive_readers()\n"
        "number = socket.socket().fileno()\n"
        "print('lost'); print('lost', file=sys.stderr)\n"
        "os._exit(0 if number > 2 else 1)\n"
    )
    done = subprocess.run(["sh", "-c", '"$0" -c "$1" >&- 2>&-', sys.executable, check], check=False)
    assert done.returncode == 0


def test_children_get_the_default_action_back() -> None:
    check = (
        "import signal, subprocess, sys\n"
        "from outbox_pipeline.standard_output import outlive_readers\n"
        "outlive_readers()\n"
        "assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN\n"
        "code = subprocess.run(['sh', '-c', 'kill -PIPE $$']).returncode\n"
        "sys.exit(0 if code == -signal.SIGPIPE else 1)\n"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_a_command_on_change_that_ignores_its_input() -> None:
    """The document is larger than a pipe holds: what the command does not read is its own affair."""
    check = (
        "from outbox_pipeline.standard_output import outlive_readers\n"
        "from outbox_pipeline.watch import notify\n"
        "outlive_readers()\n"
        "for command in ('true', 'exec <&-; sleep 0.1'):\n"
        "    notify.run_command(command, {'cause': 'x' * 1_000_000})\n"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
