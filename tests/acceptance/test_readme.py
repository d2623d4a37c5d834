"""Every command line and every Python snippet that a README shows is run as it is written.

Blocks marked `sh` are run line by line in one shell on a stack of their own; blocks marked `python` are run
with their imports. Blocks without a mark are pictures and output, and commands that only make runs.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READMES = [
    "README.md",
    "pipeline/README.md",
    "connectors/README.md",
    "consumers/README.md",
    "scripts/README.md",
]
STACK = "readme"
# Run by other tests (a consumer runs until it is told to stop), or the very thing that runs this test.
ELSEWHERE = re.compile(r"^(make |scripts/stack down|docker |outboxctl consume )")

pytestmark = [pytest.mark.stack, pytest.mark.slow]


def blocks(readme: str, language: str) -> list[str]:
    """Return the fenced blocks of one language, in order."""
    text = (ROOT / readme).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def expecting(line: str) -> str:
    """Turn a comment `# exits N` behind a command into a check of its exit code."""
    command, _, code = line.partition("# exits ")
    return f"{command} || test $? -eq {code.split()[0]}" if code else line


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))


@pytest.fixture(scope="module")
def shell_environment() -> Iterator[dict[str, str]]:
    environment = os.environ | {"OUTBOX_STACK": STACK}
    subprocess.run(["scripts/stack", "up"], cwd=ROOT, env=environment, check=True, capture_output=True)
    yield environment
    subprocess.run(["scripts/stack", "reset"], cwd=ROOT, env=environment, check=True, capture_output=True)


def test_commands_run_as_written(shell_environment: dict[str, str]) -> None:
    lines = [
        expecting(line)
        for readme in READMES
        for block in blocks(readme, "sh")
        for line in re.sub(r"\\\n\s*", " ", block).splitlines()
        if line.strip() and not line.startswith("#") and not ELSEWHERE.match(line)
    ]
    assert len(lines) > 5
    script = "\n".join(['eval "$(scripts/stack env)"', "set -e", *lines])
    run = subprocess.run(
        ["bash", "-x", "-c", script],
        cwd=ROOT,
        env=shell_environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == 0, f"{run.stdout[-1500:]}\n{run.stderr[-3000:]}"


@pytest.mark.parametrize("readme", READMES)
def test_make_targets_exist(readme: str) -> None:
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", (ROOT / readme).read_text("utf-8"), re.M))
    assert named - make_targets() == set()


def test_first_screen() -> None:
    """One sentence, the picture, three snippets, the two commands: before the first heading."""
    first = (ROOT / "README.md").read_text("utf-8").split("\n## ")[0]
    assert first.count("\n") < 70
    assert len(re.findall(r"^```python", first, re.M)) == 2
    assert len(re.findall(r"^```sh", first, re.M)) == 1
    for sign in ("┌", "make demo", "make test"):
        assert sign in first
