"""Print the logs of services, and follow them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

PAUSE = 0.3


def show(files: Mapping[str, Path], lines: int, *, follow: bool, out: TextIO) -> None:
    """Print the last lines of each log, then, if asked, whatever is appended to any of them."""
    positions = {}
    for name, path in files.items():
        positions[name] = 0
        if path.exists():
            with path.open(errors="replace") as file:
                for line in deque(file, maxlen=lines):
                    _print(name, line, files, out)
                positions[name] = file.tell()
    while follow:
        out.flush()
        time.sleep(PAUSE)
        for name, path in files.items():
            if path.exists():
                positions[name] = _new(name, path, positions[name], files, out)


def _new(name: str, path: Path, position: int, files: Mapping[str, Path], out: TextIO) -> int:
    """Print the complete lines behind `position`; returns where they end."""
    if path.stat().st_size < position:
        position = 0
    with path.open("rb") as file:
        file.seek(position)
        data = file.read()
    complete = data[: data.rfind(b"\n") + 1]
    for line in complete.decode(errors="replace").splitlines():
        _print(name, line, files, out)
    return position + len(complete)


def _print(name: str, line: str, files: Mapping[str, Path], out: TextIO) -> None:
    prefix = f"{name:<8} | " if len(files) > 1 else ""
    print(f"{prefix}{line.rstrip()}", file=out)
