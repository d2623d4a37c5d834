"""After a Ctrl-C the outcome is "interrupted", whatever error took its place on the way up."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from outbox_pipeline.cli import run
from outbox_pipeline.interruption import Interruption

# Python 3.11 puts an error of a __set_name__, as each field of a dataclass has one, into a RuntimeError.
IN_SET_NAME = """
class Field:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), signal.SIGINT)

def meet():
    type("Owner", (), {"field": Field()})
"""
# What is raised in a destructor, Python prints and forgets.
IN_DESTRUCTOR = """
class Field:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

def meet():
    Field()
    time.sleep(3600)
"""
PROGRAM = """
import os, signal, sys, time
from outbox_pipeline import __main__ as program
{}
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "outbox_pipeline.cli":
            sys.meta_path.remove(self)
            meet()

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
program.main()
"""
ARGUMENTS = ["-f", "there-is-no-such-file.yaml", "plan"]


def test_an_error_after_ctrl_c_is_an_interruption(capsys: pytest.CaptureFixture[str]) -> None:
    interruption = Interruption()
    assert run(ARGUMENTS, interruption) == 2
    assert "there-is-no-such-file.yaml" in capsys.readouterr().err
    interruption.came = True
    assert run(ARGUMENTS, interruption) == 1
    said = capsys.readouterr().err
    assert said == "error: interrupted; what was done before stays done; run the command again to go on\n"
    assert run(["--json", *ARGUMENTS], interruption) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == 1
    assert document["error"]["problem"] == "interrupted; what was done before stays done"


def test_a_command_that_ends_well_keeps_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    interruption = Interruption()
    interruption.came = True
    assert run(["--version"], interruption) == 0
    assert capsys.readouterr().out.startswith("outboxctl, version")


@pytest.mark.parametrize("where", [IN_SET_NAME, IN_DESTRUCTOR], ids=["__set_name__", "__del__"])
def test_a_ctrl_c_is_one_wherever_it_comes(where: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(where), "plan"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "error: interrupted; what was done before stays done; run the command again to go on\n",
    )
