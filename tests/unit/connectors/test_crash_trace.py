"""A crash leaves a trace wherever there is a place for one, and asking for it never fails."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


def crash_after(preparation: str) -> subprocess.CompletedProcess[str]:
    """Prepare a new process, ask for a trace there, and let it crash."""
    code = f"{preparation}\nfrom outbox_connectors.crash_trace import trace_crashes\ntrace_crashes()\n{CRASH}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_the_trace_goes_to_stderr() -> None:
    crashed = crash_after("")
    assert crashed.returncode == -signal.SIGSEGV
    assert crashed.stderr.startswith("Fatal Python error: Segmentation fault\n")


@pytest.mark.parametrize("stderr", ["None", "__import__('io').StringIO()"])
def test_without_a_place_for_it_the_process_works_on(stderr: str) -> None:
    crashed = crash_after(f"import sys; sys.stderr = {stderr}")
    assert (crashed.returncode, crashed.stderr) == (-signal.SIGSEGV, "")


def test_a_trace_that_somebody_else_asked_for_stays_where_it_is() -> None:
    crashed = crash_after("import faulthandler, sys; faulthandler.enable(sys.stdout)")
    assert crashed.stdout.startswith("Fatal Python error: Segmentation fault\n")
    assert crashed.stderr == ""
