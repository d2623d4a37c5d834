"""Ctrl-C at any moment: one line, exit code 1, and a pipeline to go on with.

$OUTBOX_SEED chooses other moments, `make soak` more of them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from announced import ANNOUNCED, await_watching
from fix_provision import Pipeline
from forms import SEED, sized
from waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.stack

WANTED = sized(6, 60)  # of each command
AT_ONCE = 3  # processes beside each other: most of their time is waiting


class Interrupted:
    """One run of `outboxctl` that gets SIGINT after a while, or has ended before."""

    def __init__(self, file: Path, arguments: tuple[str, ...], after_seconds: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", ANNOUNCED, "-f", str(file), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NO_COLOR": "1"},
        )
        assert self.process.stderr is not None
        await_watching(self.process.stderr)
        self.due = time.monotonic() + after_seconds

    def end(self) -> tuple[int, str, str]:
        """Send the signal when it is due, and give code, stdout and stderr."""
        time.sleep(max(0.0, self.due - time.monotonic()))
        self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, out, err


def interrupted(
    pipeline: Pipeline, arguments: tuple[str, ...], fine: set[int], dice: random.Random
) -> Iterator[str]:
    """Break a command off at random moments of its life; give what it said, each time it was broken off."""
    file = pipeline.folder / "interrupted.yaml"
    file.write_text(json.dumps(pipeline.site.document), "utf-8")
    began = time.monotonic()
    pipeline.run(*arguments)
    lasts = time.monotonic() - began
    while True:
        runs = [Interrupted(file, arguments, dice.uniform(0, lasts)) for _ in range(AT_ONCE)]
        for code, out, err in [run.end() for run in runs]:
            assert "Traceback" not in err
            if code in fine:  # it had ended before
                continue
            assert (code, "error: interrupted; what was done before stays done" in err) == (1, True), err
            if "--json" in arguments:
                assert json.loads(out)["exit_code"] == 1
            yield err


@pytest.mark.parametrize(
    ("arguments", "fine"),
    [
        (("--json", "plan"), {3}),
        (("doctor",), {4, 5}),
        (("connectors", "list"), {0}),
        (("send", "order", "1", "OrderPlaced", "{}", "--dry-run"), {0}),
    ],
    ids=["plan", "doctor", "connectors", "send"],
)
def test_whatever_it_breaks_off_it_says_that_it_was_interrupted(
    untouched: Pipeline, arguments: tuple[str, ...], fine: set[int]
) -> None:
    found = interrupted(untouched, arguments, fine, random.Random(SEED))
    for _ in range(WANTED):
        next(found)


def test_apply_goes_on_from_wherever_it_was_broken_off(own_pipeline: Pipeline) -> None:
    pipeline, dice = own_pipeline, random.Random(SEED)
    for _ in range(max(1, WANTED // 6)):
        found = interrupted(pipeline, ("apply", "--no-wait"), {0}, dice)
        pipeline.run("destroy", "--yes", "--data")
        for _ in range(5):
            next(found)
        assert pipeline.run("apply", "--no-wait").code == 0
        assert pipeline.plan() == {}
