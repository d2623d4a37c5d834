"""Read an event's id out of a record's headers, under whatever name and in whatever form it stands there.

The contract's records have it in the first header, as 36 characters. A connector with another configuration
may put other headers before it, place it under another name, or write it as JSON.
"""

from __future__ import annotations

import json
import re
from binascii import unhexlify
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from outbox_connectors.record_headers import Headers
from outbox_connectors.wire_form import header_names

_UUID: Final = re.compile(
    rb"(?:urn:uuid:)?\{?([0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12})\}?", re.IGNORECASE
)
_TIME: Final = re.compile(rb"[+-]?\d{4,}-\d\d-\d\dT")


@dataclass(frozen=True, slots=True)
class HeaderNames:
    """The headers that may hold an event's id and its time, the likeliest first."""

    id: tuple[str, ...] = ("id",)
    occurred_at: tuple[str, ...] = ("occurred_at",)

    @classmethod
    def of(cls, config: Mapping[str, str]) -> Self:
        """Take them from a connector's configuration."""
        return cls(header_names(config, "id"), header_names(config, "occurred_at"))


def packed_id(headers: Headers, names: HeaderNames) -> bytes | None:
    """Find the id of an event as 16 bytes; None where no header holds a UUID. Pure."""
    for wanted in names.id:
        for name, value in headers:
            if name == wanted and (match := _UUID.fullmatch(_plain(value))):
                return unhexlify(match[1].replace(b"-", b""))
    return None


def occurred_before(headers: Headers, names: HeaderNames, since: bytes) -> bool:
    """Tell whether an event is known to be older than a time, written as the header has it. Pure.

    Where no header says a time in that form, nobody knows, and it is not taken for older.
    """
    for wanted in names.occurred_at:
        for name, value in headers:
            if name == wanted and _TIME.match(text := _plain(value)):
                return text < since
    return False


def _plain(value: str | bytes | None) -> bytes:
    """Take the quotes of JSON off a header's value, and the schema that JsonConverter may put around it."""
    raw = value.encode() if isinstance(value, str) else value or b""
    raw = raw.strip()
    if raw[:1] not in (b'"', b"{"):
        return raw
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return raw
    if isinstance(found, dict):
        found = found.get("payload")
    return found.strip().encode("utf-8", "replace") if isinstance(found, str) else b""
