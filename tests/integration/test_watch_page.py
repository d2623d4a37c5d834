"""The watch's page in a real browser: it is drawn at phone and desktop width, and renews itself."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outbox_pipeline.watch.long_running import VerdictChange, WatchState
from outbox_pipeline.watch.sample import Sample
from outbox_pipeline.watch.serve import StatusPages, StatusServer
from outbox_pipeline.watch.thresholds import Thresholds
from watch_samples import HEALTHY, later, with_connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="install chromium (Debian: chromium)")
QUIET = ("--headless", "--no-sandbox", "--disable-gpu")
PNG = b"\x89PNG\r\n"


class Shown(WatchState):
    """Knows when its answer was first shown; the pipeline is paused from then on."""

    def __init__(self) -> None:
        self.shown = 0
        self._looks = 0
        super().__init__(self._look, Thresholds())

    def _look(self) -> Sample:
        self._looks += 1
        sample = later(replace(HEALTHY, canary_seconds=0.02), self._looks)
        return with_connect(sample, state="PAUSED") if self.shown else sample

    @property
    def changes(self) -> tuple[VerdictChange, ...]:
        if self.shown:
            self.step()
        self.shown += 1
        return super().changes


@pytest.fixture
def address() -> Iterator[str]:
    """A watch whose pipeline is paused once its page has been shown."""
    state = Shown()
    state.step()
    with StatusServer(StatusPages(state, lambda: state.counts, 1000.0), "127.0.0.1", 0) as server:
        yield server.url


def browse(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(CHROMIUM), *QUIET, f"--user-data-dir={folder / 'profile'}", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )


@pytest.mark.parametrize("width", [390, 1280])
def test_it_is_drawn_at_every_width(address: str, tmp_path: Path, width: int) -> None:
    picture = tmp_path / "page.png"
    done = browse(tmp_path, f"--window-size={width},900", f"--screenshot={picture}", address)
    assert picture.exists(), done.stderr
    content = picture.read_bytes()
    assert content.startswith(PNG)
    assert len(content) > 15_000  # an empty page is far smaller
    assert int.from_bytes(content[16:20], "big") == width


def test_it_renews_itself_without_a_reload(address: str, tmp_path: Path) -> None:
    done = browse(tmp_path, "--virtual-time-budget=20000", "--dump-dom", address)
    assert "connector_paused" in done.stdout, done.stderr
    assert "<title>connector_paused</title>" in done.stdout
    assert "Uncaught" not in done.stderr
