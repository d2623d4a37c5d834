"""The table at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.figures import Line

HEADER = ("work", "variant", "median", "best", "unit", "ratio", "goal", "")
_NUMBERS = {2, 3, 5}


def rendered(lines: Sequence[Line]) -> str:
    """Align the lines in columns, with a rule between two pieces of work."""
    rows = [_row(line) for line in lines]
    widths = [max(len(row[column]) for row in (HEADER, *rows)) for column in range(len(HEADER))]
    out = [_aligned(HEADER, widths)]
    work = None
    for row in rows:
        if row[0] != work:
            out.append("-" * (sum(widths) + 2 * (len(widths) - 1)))
        out.append(_aligned((row[0] if row[0] != work else "", *row[1:]), widths))
        work = row[0]
    return "\n".join(out)


def _row(line: Line) -> tuple[str, ...]:
    figure = line.figure
    return (
        figure.work,
        figure.variant,
        number(figure.median),
        number(figure.best),
        figure.unit,
        "1" if figure.reference else f"{line.ratio:.2f}" if line.ratio is not None else "",
        _goal(line),
        line.verdict,
    )


def _goal(line: Line) -> str:
    if line.goal is None:
        return ""
    return f"{line.goal} {line.figure.unit}" if line.goal.absolute else str(line.goal)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    placed = (
        cell.rjust(width) if column in _NUMBERS else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join(placed).rstrip()


def durations(took: Mapping[str, float]) -> str:
    """List how many seconds each part took, in one line."""
    return "seconds: " + ", ".join(f"{part} {seconds:.0f}" for part, seconds in took.items())


def number(value: float) -> str:
    """Write a number with three significant digits or, from a thousand on, whole with separators."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
