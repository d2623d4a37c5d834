"""A durable inbox in a database of its own.

lab    a `durable_lab.Lab` with its tables; PostgreSQL of the test stack
"""

from __future__ import annotations

from pathlib import Path

import pytest

from durable_lab import Lab
from fix_stack import Database


@pytest.fixture
def lab(database: Database, tmp_path: Path) -> Lab:
    made = Lab(database.conninfo, tmp_path)
    made.create()
    return made
