"""The page for contributors names rooms and files that exist, and leaves no room out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
PACKAGES = ("pipeline/outbox_pipeline/", "consumers/outbox_consumers/")


def rows(heading: str) -> list[tuple[str, str]]:
    """The two cells of each row of the table below a heading or with this head."""
    table = GUIDE.partition(heading)[2].partition("|---|---|\n")[2].partition("\n\n")[0]
    return [(cells[1].strip(), cells[2].strip()) for cells in (row.split("|") for row in table.splitlines())]


def paths(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


CHANGES = rows("## To change X, go to Y")


def test_map_has_the_fifteen_likeliest_changes() -> None:
    assert len(CHANGES) == len(dict(CHANGES)) == 15


@pytest.mark.parametrize(("change", "place"), CHANGES, ids=[change for change, _ in CHANGES])
def test_map_leads_to_places_that_exist(change: str, place: str) -> None:
    assert paths(place), f"{change}: names no place"
    assert [path for path in paths(place) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_is_described(package: str) -> None:
    named = {name for cell, _ in rows(f"| room of `{package}` |") for name in paths(cell)}
    assert [name for name in named if not (ROOT / package / name).exists()] == []
    rooms = {f"{folder.parent.name}/" for folder in (ROOT / package).glob("*/__init__.py")} - {"sql/"}
    assert rooms - named == set()


def test_vocabulary_fits_on_a_page() -> None:
    words = rows("## Vocabulary")
    assert len(words) == len(dict(words)) == 20
