"""The real runner with the real pytest, on a few made-up tests without servers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from test_lanes.lanes import Lane, Place
from test_lanes.session import AGAIN, Session

# Fails at its first run and passes at every later one.
ONCE = """
from pathlib import Path
def test_it():
    mark = Path(__file__).with_suffix(".ran")
    first = not mark.exists()
    mark.touch()
    assert not first, "a busy machine"
"""
ALWAYS = "def test_it():\n    raise RuntimeError('a fault')\n"
GOOD = "def test_it():\n    pass\n"
CRASH = "import os\ndef test_it():\n    os.abort()\n"
BROKEN_FILE = "import no_such_module_anywhere\n"


@pytest.fixture(autouse=True)
def _without_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start pytest without the plugins that are installed: it takes a third of the time."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@dataclass
class NoServers:
    """Servers that these tests do not need; notes what was asked for."""

    asked: list[str] = field(default_factory=list)

    def fresh(self, name: str) -> None:
        self.asked.append(f"fresh {name}")

    def down(self, *names: str) -> None:
        self.asked += [f"down {name}" for name in names]


@dataclass
class Run:
    code: int
    output: str
    servers: NoServers


def run(root: Path, **files: str) -> Run:
    """Run each folder's files as a lane of its own."""
    (root / "logs").mkdir()
    (root / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider -q\n")
    for name, text in files.items():
        folder, _, file = name.partition("__")
        path = root / "tests" / folder / f"test_{file}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    lanes = [Lane(folder.name, (f"tests/{folder.name}",)) for folder in sorted((root / "tests").iterdir())]
    said: list[str] = []
    servers = NoServers()
    session = Session(Place(root, root / "logs"), servers, said.append, quiet_seconds=0.0)
    code = session.run(lanes)
    return Run(code, "\n".join(said), servers)


def test_all_passed(tmp_path: Path) -> None:
    done = run(tmp_path, unit__a=GOOD, integration__b=GOOD)
    assert done.code == 0
    assert done.output.endswith("== all passed")
    assert done.output.count("1 passed") == 2
    assert done.servers.asked == []


def test_one_that_fails_the_first_time_only_is_unsteady(tmp_path: Path) -> None:
    done = run(tmp_path, integration__once=ONCE, integration__good=GOOD, unit__good=GOOD)
    assert done.code == 0
    closing = done.output.split("\n== unsteady: ")[1]
    assert closing.startswith(
        "1\ntests/integration/test_once.py::test_it\n  AssertionError: a busy machine\n"
    )
    assert "log: " in closing
    assert "1 failed, 1 passed" in done.output
    assert done.servers.asked == ["down integration", "down unit", f"fresh {AGAIN}", f"down {AGAIN}"]


def test_one_that_always_fails_is_red(tmp_path: Path) -> None:
    done = run(tmp_path, integration__once=ONCE, scenarios__always=ALWAYS)
    assert done.code == 1
    assert "== unsteady: 1" in done.output
    assert "tests/scenarios/test_always.py::test_it: failed twice" in done.output


def test_a_unit_test_gets_no_second_run(tmp_path: Path) -> None:
    done = run(tmp_path, unit__once=ONCE)
    assert done.code == 1
    assert "unsteady" not in done.output
    assert done.servers.asked == []


def test_three_unsteady_tests_are_red(tmp_path: Path) -> None:
    done = run(tmp_path, integration__a=ONCE, scenarios__b=ONCE, acceptance__c=ONCE)
    assert done.code == 1
    assert "== unsteady: 3" in done.output


@pytest.mark.parametrize("text", [CRASH, BROKEN_FILE], ids=["aborts", "cannot be collected"])
def test_a_lane_that_crashes_is_red(tmp_path: Path, text: str) -> None:
    done = run(tmp_path, integration__a=text, unit__b=GOOD)
    assert done.code == 1
    assert "lane integration was ended by signal 6" in done.output or (
        "lane integration ended with exit code 2" in done.output
    )


def test_a_report_of_an_earlier_run_does_not_speak_for_this_one(tmp_path: Path) -> None:
    place = Place(tmp_path, tmp_path)
    case = '<testcase classname="tests.integration.test_a" name="test_it" />'
    place.report("integration").write_text(f"<testsuites><testsuite>{case}</testsuite></testsuites>")
    assert place.tests("integration")
    (tmp_path / "test_a.py").write_text(CRASH)
    session = Session(place, NoServers(), lambda text: None, quiet_seconds=0.0)
    assert session.run([Lane("integration", ("test_a.py",))]) == 1
    assert place.tests("integration") is None
