"""Parse durations and sizes: `7 days`, `1h 30m`, `64MB`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

_SECONDS: Final = {
    "ms": 0.001,
    "s": 1,
    "sec": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "d": 86400,
    "day": 86400,
    "w": 604800,
    "week": 604800,
}
_BYTES: Final = {"b": 1} | {
    unit: base**power
    for power, letter in enumerate("kmgt", start=1)
    for unit, base in ((f"{letter}b", 1000), (f"{letter}ib", 1024))
}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)


def duration(text: str) -> timedelta:
    """Read `30s`, `7 days`, `1h 30m`, `250ms`. Raises ValueError, also for a number without unit."""
    rest, total = text, 0.0
    while rest:
        part = _PART.match(rest)
        word = part[2].lower() if part else ""
        unit = _SECONDS.get(word) or _SECONDS.get(word.removesuffix("s"))
        if part is None or unit is None:
            raise ValueError(f"not a duration: {text!r}")
        total += float(part[1]) * unit
        rest = rest[part.end() :]
    if not text.strip():
        raise ValueError("an empty duration")
    try:
        return timedelta(seconds=total)
    except OverflowError:
        raise ValueError(f"too long: {text!r}") from None


def size(text: str) -> int:
    """Read `64MB` (64,000,000), `1GiB` (1,073,741,824), `512 kB`. Raises ValueError."""
    part = _PART.fullmatch(text)
    unit = _BYTES.get(part[2].lower()) if part else None
    if part is None or unit is None:
        raise ValueError(f"not a size: {text!r}")
    return int(float(part[1]) * unit)
