"""Format sizes, durations, counts and rates for people."""

from __future__ import annotations


def size(count: float) -> str:
    """Format a number of bytes: `0 B`, `312 kB`, `4.2 GB` (powers of 1024, as PostgreSQL counts)."""
    value, sign = abs(count), "-" if count < 0 else ""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1024:
            return f"{sign}{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{sign}{value:.1f} {unit}"
        value /= 1024
    return f"{sign}{value:.1f} TB"


def duration(seconds: float) -> str:
    """Format a duration in at most two units: `8 s`, `3 min 20 s`, `4 h 10 min`, `12 days`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min" + (f" {rest} s" if rest and minutes < 10 else "")
    if whole < 2 * 86_400:
        hours, rest = divmod(whole // 60, 60)
        return f"{hours} h" + (f" {rest} min" if rest else "")
    return f"{whole // 86_400} days"


def count(number: int, one: str, many: str = "") -> str:
    """Format a count: `1 row`, `12,000 rows`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def number(value: float) -> str:
    """Format the number of a rate with two significant digits."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 0.1 else f"{value:.2g}"


def span(earliest: float | None, expected: float | None) -> str:
    """Format a range of durations: from the earliest to the expected, as in `2 h 40 min to 5 h`."""
    if earliest is None and expected is None:
        return "not in sight"
    if expected is None:
        return f"{duration(earliest or 0.0)} at the earliest"
    if earliest is None or duration(earliest) == duration(expected):
        return f"about {duration(expected)}"
    return f"{duration(earliest)} to {duration(expected)}"
