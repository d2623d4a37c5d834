"""No code of ours makes a call of AdminClient that can end the process with SIGSEGV."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Why, and what to call instead: outbox_pipeline/offset_reader.py.
CRASHING = re.compile(r"\.(list_offsets|delete_records|list_consumer_group_offsets)\(")


def test_no_package_makes_a_call_that_can_crash() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for package in ("connectors", "consumers", "examples", "pipeline", "scripts")
        for path in sorted((ROOT / package).rglob("*.py"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if CRASHING.search(line)
    ]
    assert found == []
