"""Suggest the closest known word for a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(wrong: str, known: Iterable[str]) -> str:
    """Suggest the known word closest to `wrong`, or list all known words if none is close."""
    words = sorted(known)
    close = difflib.get_close_matches(wrong, words, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"known here: {', '.join(words)}"
