"""Outbox rows of every kind, from a seed: what PostgreSQL accepts, as text."""

from __future__ import annotations

import json
import random
import string
import uuid
from collections.abc import Iterator

from outbox_connectors import record
from outbox_connectors.record import Row

AGGREGATE_TYPES = ("order", "pay.ment-2", "X_9")

TIMES = (
    "2026-11-29 12:34:56.789012+02",
    "2026-11-29 12:00:00+00",
    "2026-11-29 12:00:00.5+00",
    "2026-03-29 02:30:00.000001+01",
    "1969-12-31 23:59:59.999999+00",
    "1900-01-01 00:00:00+00:19:32",
    "1582-10-10 00:00:00+00",
    "0001-01-01 00:00:00+00",
    "9999-12-31 23:59:59.999999+00",
    "10000-01-01 00:00:00+00",
    "294276-12-31 23:59:59.999999+00",
    "0044-03-15 00:00:00+00 BC",
    "0001-12-31 00:00:00+00 BC",
    "4714-11-24 00:00:00+00 BC",
    "infinity",
    "-infinity",
)

NUMBERS = (
    *("0", "-0", "-0.0", "0e5", "0.00", "1", "-1", "1.0", "1.50", "1e3", "1E-7", "2.5e+2"),
    *("1e300", "1e-300", "12345678901234567890.0123456789", "9007199254740993"),
)

STRINGS = (
    *('""', '"plain"', '"  "', '"null"', '"Ünï 😀 \u200d 漢字"', '"${env:HOME}"', '"{\\"a\\": 1}"'),
    *(r'"\u00e9\u20ac"', r'"\ud83d\ude00"', r'"\n\t\b\f\r"', r'"\u0001\u001f\u007f"', r'"\\ \" \/"'),
)

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TEXTS = ("", "x", "  ", "Ünï 😀", "a,b:c", "line\nbreak", "\t", "null", TRACEPARENT)

KEYS = ("42", "0", " ", "ключ", "a b", "😀", "null", "\n", str(uuid.UUID(int=7)), "k" * 1024)


def json_text(rng: random.Random, depth: int = 0) -> str:
    """Write a JSON text, with blanks, number forms, escapes and repeated keys as they may come."""
    choice = rng.randrange(3 if depth > 3 else 7)
    if choice == 0:
        return rng.choice(NUMBERS)
    if choice == 1:
        return rng.choice(STRINGS)
    if choice == 2:
        return rng.choice(("true", "false", "null"))
    blank = rng.choice(("", " ", "\n\t"))
    members = [json_text(rng, depth + 1) for _ in range(rng.randrange(4))]
    if choice in (3, 4):
        return f"[{blank}{(',' + blank).join(members)}]"
    names = [rng.choice((*STRINGS, '"a"', '"bb"', '"B"', '"é"')) for _ in members]
    return f"{{{blank}{(',' + blank).join(f'{n}:{blank}{m}' for n, m in zip(names, members, strict=True))}}}"


def rows(rng: random.Random, count: int, *, binary: bool) -> Iterator[Row]:
    """Make rows to insert. Every special value comes up at least once when `count` is 300 or more."""
    for at in range(count):
        payload: str | bytes | None
        payload = _bytes(rng, at) if binary else json_text(rng)
        yield Row(
            id=str(uuid.UUID(int=rng.getrandbits(128))),
            aggregate_type=AGGREGATE_TYPES[at % len(AGGREGATE_TYPES)],
            aggregate_id=_pick(rng, KEYS, at) if at % 3 else f"key-{rng.randrange(1000)}",
            event_type=rng.choice(("OrderPlaced", "Ünï", " ", "x" * 255)),
            event_version=rng.choice(("1", "0", "-1", "2147483647", "-2147483648")),
            payload=None if at % 11 == 5 else payload,
            occurred_at=_pick(rng, TIMES, at),
            traceparent=_optional(rng),
            correlation_id=_optional(rng),
            causation_id=_optional(rng),
            headers=None if at % 4 == 1 else json_text(rng),
        )


def largest(rng: random.Random, *, binary: bool) -> Row:
    """Make the row that leaves no room: every field as long as its limit allows, and incompressible."""
    inner = record.MAX_PAYLOAD_BYTES - 2
    trace = "t" * record.MAX_TRACE_TEXT
    return Row(
        id=str(uuid.UUID(int=rng.getrandbits(128))),
        aggregate_type=AGGREGATE_TYPES[0],
        aggregate_id="k" * record.MAX_AGGREGATE_ID,
        event_type="e" * record.MAX_EVENT_TYPE,
        event_version=str(record.MIN_EVENT_VERSION),
        payload=rng.randbytes(inner + 2) if binary else f'"{_noise(rng, inner)}"',
        occurred_at="294276-12-31 23:59:59.999999+00",
        traceparent=trace,
        correlation_id=trace,
        causation_id=trace,
        headers=f'"{_noise(rng, record.MAX_HEADERS_BYTES - 2)}"',
    )


def _noise(rng: random.Random, length: int) -> str:
    return "".join(rng.choices(string.ascii_letters + string.digits, k=length))


def _pick(rng: random.Random, values: tuple[str, ...], at: int) -> str:
    return values[at] if at < len(values) else rng.choice(values)


def _optional(rng: random.Random) -> str | None:
    return None if rng.random() < 0.3 else rng.choice(TEXTS)


def _bytes(rng: random.Random, at: int) -> bytes:
    fixed = (b"", b"\0", b"\xff\xfe", b"null", b"   ", bytes(range(256)), json.dumps({"a": 1}).encode())
    return fixed[at] if at < len(fixed) else rng.randbytes(rng.randrange(200))
