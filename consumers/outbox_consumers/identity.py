"""The identity of an event: the 16 bytes by which the inbox knows it, derived from its record.

A UUID is unique everywhere. Any other text, such as a number from a sequence, is unique only within its
source, so its id is derived from the text and a scope, which is the topic unless the application names
another. A text that identifies nothing (empty, blank, a word for null, the nil UUID) is no id.
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha1
from typing import Final
from uuid import UUID, uuid5

from outbox_connectors.record_headers import Headers, header_value
from outbox_consumers.errors import UsageError

ID_HEADER: Final = "id"
TYPE_HEADER: Final = "event_type"
# In the copy of a dead letter: the event's id, which the other headers may not give.
DEAD_LETTER_ID_HEADER: Final = "outbox_event_id"

# Namespaces of derived ids. Changing one makes handled events look new.
_TEXT_IDS: Final = UUID("0b8f6a52-9d0c-5c57-8f0c-5e4ce0a9a1d4")  # of versions without scopes
_SCOPED_IDS: Final = UUID("4c1f5d0e-52a8-5d0b-b0f7-2f1f6a0f6e93")
_POSITION_IDS: Final = UUID("7a0f3a7e-3d5b-5f0e-9a4b-3f1f0c1f2b6d")
NIL: Final = bytes(16)
_NOTHING: Final = frozenset({b"", b"null", b"none", b"nil", b"undefined"})
_BLANK: Final = b" \t\r\n\v\f\0"


@dataclass(frozen=True, slots=True)
class IdentityRules:
    """Which headers carry an event's id and type, and within what an id that is no UUID is unique.

    `scope` is one name for all topics, or a name for each of some topics; a topic without one is its own
    scope. Raises UsageError for names that are empty or contain NUL.
    """

    id_header: str = ID_HEADER
    type_header: str = TYPE_HEADER
    scope: str | Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in (("id_header", self.id_header), ("type_header", self.type_header)):
            if not isinstance(value, str) or not value or "\0" in value:
                raise UsageError(
                    f"{name}={value!r} is not the name of a header", remedy=f'write {name}="..."'
                )
        scopes = [self.scope] if isinstance(self.scope, str) else list(self.scope.values())
        if any(not isinstance(scope, str) or not scope or "\0" in scope for scope in scopes):
            raise UsageError(
                f"id_scope={self.scope!r}: a scope is a non-empty text",
                remedy='write id_scope="shop", or id_scope={"orders": "shop"}',
            )

    @property
    def is_usual(self) -> bool:
        """Whether id and type are in the headers of our outbox's records."""
        return self.id_header == ID_HEADER and self.type_header == TYPE_HEADER

    def scope_of(self, topic: str) -> str:
        """Return the scope of a topic's ids."""
        return self.scope if isinstance(self.scope, str) else self.scope.get(topic, topic)


USUAL: Final = IdentityRules()


@dataclass(frozen=True, slots=True)
class Identity:
    """The id of a record. `text` is what it was derived from; empty for a UUID and for a missing id."""

    packed: bytes
    own: bool  # whether the record has an id
    text: bytes = b""


def identify(headers: Headers, position: tuple[str, int, int], naming: IdentityRules) -> Identity:
    """Return the id of a record. Never raises, whatever the headers contain."""
    text = header_value(headers, naming.id_header, 0)
    if text is None or says_nothing(text):
        return Identity(_dead_letter_id(headers) or position_id(*position), own=False)
    packed = packed_uuid(text)
    if packed:
        return Identity(packed, own=True)
    scope = naming.scope_of(position[0])
    return Identity(_dead_letter_id(headers) or scoped_id(scope, text), own=True, text=text)


def type_of(headers: Headers, naming: IdentityRules) -> bytes | None:
    """Return the type as the bytes of the record; None for a record without a type."""
    kind = header_value(headers, naming.type_header, 1)
    return kind if kind and kind.strip(_BLANK) else None


def packed_uuid(text: bytes) -> bytes:
    """Pack the text of a UUID into 16 bytes; empty for any other text.

    Case is ignored. Without hyphens it needs a version and the variant of RFC 9562, since 32 hexadecimal
    digits may also be a number with leading zeros.
    """
    try:
        packed = unhexlify(text.replace(b"-", b""))
    except ValueError:
        return b""
    if len(packed) == 16 and len(text) == 36:
        return packed
    if len(packed) != 16 or len(text) != 32:
        return b""
    marked = 0x10 <= packed[6] < 0x90 and packed[8] >> 6 == 0b10
    return packed if marked or packed == NIL else b""


def says_nothing(text: bytes) -> bool:
    """Return whether a text identifies nothing: empty, blank, the nil UUID, or a word for null."""
    return text.strip(_BLANK).lower() in _NOTHING or packed_uuid(text.strip(_BLANK + b"{}")) == NIL


def scoped_id(scope: str, text: bytes) -> bytes:
    """Derive the id of a text that is unique within its scope: a UUIDv5 of both."""
    name = scope.encode() + b"\0" + text
    return UUID(bytes=sha1(_SCOPED_IDS.bytes + name, usedforsecurity=False).digest()[:16], version=5).bytes


def unscoped_id(text: bytes) -> bytes:
    """Derive the id as versions without scopes did: the same text is the same id from any source."""
    try:
        packed = unhexlify(text.replace(b"-", b""))
    except ValueError:
        packed = b""
    return packed if len(packed) == 16 else uuid5(_TEXT_IDS, text.decode("utf-8", "backslashreplace")).bytes


def position_id(topic: str, partition: int, offset: int) -> bytes:
    """Derive an id for a record without one. It detects a second delivery of this record only."""
    return uuid5(_POSITION_IDS, f"{topic}/{partition}/{offset}").bytes


def _dead_letter_id(headers: Headers) -> bytes:
    """Read the event's id from the copy of a dead letter; empty for any other record."""
    text = header_value(headers, DEAD_LETTER_ID_HEADER, len(headers))
    packed = b"" if text is None else packed_uuid(text)
    return b"" if packed == NIL else packed
