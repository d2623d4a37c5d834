"""The two forms of a storm: a short one for every test run, a long one for `make soak` (OUTBOX_LONG=1).

OUTBOX_SEED chooses what is killed when, in either form; every ledger prints the seed it was made with.
"""

from __future__ import annotations

import os
from typing import Final, TypeVar

Size = TypeVar("Size", int, float)

LONG: Final = bool(os.environ.get("OUTBOX_LONG"))
SEED: Final = int(os.environ.get("OUTBOX_SEED", "20261130"))


def sized(short: Size, long: Size) -> Size:
    """Choose how much of something there is in the form that runs."""
    return long if LONG else short
