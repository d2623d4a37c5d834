"""Positions in PostgreSQL's write-ahead log: `X/Y` for people and SQL, an integer for arithmetic.

Kafka Connect stores Debezium's positions as integers, `pg_replication_slots` shows them as `X/Y`.
"""

from __future__ import annotations

import re

from outbox_pipeline.errors import UsageError

_FORM = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_BIGGEST = 2**64 - 1


def parse(text: str) -> int:
    """Read `X/Y` (two hexadecimal halves, as type pg_lsn prints them) as bytes since the start of the log.

    Raises UsageError for anything else.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"{text!r} is not a position in the write-ahead log",
            remedy="write it as PostgreSQL does, for example 0/16B3748",
        )
    return int(found[1], 16) << 32 | int(found[2], 16)


def text(position: int) -> str:
    """Write a position as `X/Y`, the way PostgreSQL prints type pg_lsn.

    Raises UsageError when it is outside the 64 bits of the log.
    """
    if not 0 <= position <= _BIGGEST:
        raise UsageError(f"{position} is not a position in the write-ahead log")
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def parsed(written: str | None) -> int | None:
    """Read a position as PostgreSQL writes it, where there is one."""
    return None if written is None else parse(written)
