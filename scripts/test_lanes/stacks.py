"""Start and stop the stacks that lanes run on, through scripts/stack."""

from __future__ import annotations

import subprocess
from pathlib import Path


class StackDidNotStart(Exception):
    """A stack did not start; the text is what scripts/stack said."""


class Stacks:
    """The stacks of one run. What each of them says goes to a log."""

    def __init__(self, root: Path, logs: Path) -> None:
        self._root = root
        self._logs = logs

    def up(self, *names: str) -> None:
        """Start stacks, one after the other; raises StackDidNotStart."""
        for name in names:
            self._run(name, "up")

    def fresh(self, name: str) -> None:
        """Start a stack without anything that was left in it; raises StackDidNotStart."""
        self._run(name, "reset")
        self._run(name, "up")

    def down(self, *names: str) -> None:
        """Stop stacks, whether or not they run."""
        for name in names:
            subprocess.run(
                [self._root / "scripts/stack", "--name", name, "down"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )

    def _run(self, name: str, command: str) -> None:
        log = self._logs / f"stack-{name}.log"
        with log.open("wb") as output:
            done = subprocess.run(
                [self._root / "scripts/stack", "--name", name, command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if done.returncode != 0:
            raise StackDidNotStart(log.read_text("utf-8", "replace"))
