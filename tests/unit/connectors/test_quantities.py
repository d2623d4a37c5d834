"""Durations and sizes in words."""

from __future__ import annotations

from datetime import timedelta

import pytest

from outbox_connectors.quantities import duration, size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30s", timedelta(seconds=30)),
        ("7 days", timedelta(days=7)),
        ("1 day", timedelta(days=1)),
        ("4h", timedelta(hours=4)),
        ("1h 30m", timedelta(minutes=90)),
        ("1h30m", timedelta(minutes=90)),
        ("250ms", timedelta(milliseconds=250)),
        ("0.5 hours", timedelta(minutes=30)),
        ("2 Weeks", timedelta(weeks=2)),
    ],
)
def test_durations(text: str, expected: timedelta) -> None:
    assert duration(text) == expected


@pytest.mark.parametrize(
    "text", ["", " ", "7", "days", "7 fortnights", "-1s", "1s tomorrow", "9999999999 days"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError):
        duration(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("64MB", 64_000_000), ("1GiB", 2**30), ("512 kB", 512_000), ("10b", 10), ("1.5 TB", 1_500_000_000_000)],
)
def test_sizes(text: str, expected: int) -> None:
    assert size(text) == expected


@pytest.mark.parametrize("text", ["", "64", "MB", "64 megs", "-1MB", "1GB 2MB", "1 sB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError):
        size(text)
