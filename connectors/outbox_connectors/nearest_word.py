"""What was probably meant by a word that nobody knows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(wrong: str, known: Iterable[str]) -> str:
    """Say which known word was probably meant, or which words there are."""
    words = sorted(known)
    close = difflib.get_close_matches(wrong, words, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"known here: {', '.join(words)}"
