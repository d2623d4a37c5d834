"""The types of the values in a definition file: checks for the reader, JSON Schema for editors.

The schema may accept what the reader rejects, never the other way round. A text may refer to a variable
whose content an editor does not know, so each pattern accepts `${`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from outbox_connectors import record
from outbox_connectors.definition import Partitioning, Payload
from outbox_connectors.nearest_word import nearest

SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
TOPIC_PLACEHOLDER: Final = "{aggregate_type}"


@dataclass(frozen=True, slots=True)
class ValueType:
    """How a value is written: its JSON types, without null, and the rest of its JSON Schema.

    `check` returns "" for a valid text, otherwise a description of a valid one; `remedy` is that description
    for a value that has to be parsed. `low` and `high` are the bounds of an integer.
    """

    types: tuple[str, ...]
    schema: Mapping[str, object]
    check: Callable[[str], str] = lambda _: ""
    remedy: str = ""
    low: int = 0
    high: int = 0


def _or_variable(pattern: str) -> str:
    return rf"^({pattern})$|\$\{{"


def _text(pattern: str, check: Callable[[str], str] = lambda _: "", remedy: str = "") -> ValueType:
    return ValueType(("string",), {"pattern": _or_variable(pattern)}, check, remedy)


def _matching(pattern: str, usable: str) -> ValueType:
    """Build the type of a text that is valid if and only if it matches the pattern."""
    return _text(pattern, lambda text: "" if re.fullmatch(pattern, text) else usable)


def _one_of(words: Iterable[str]) -> ValueType:
    return _text("|".join(words), remedy=f"one of {', '.join(words)}")


def whole_number(low: int, high: int) -> ValueType:
    """Build the type of an integer from `low` to `high`, which may also be written as text."""
    schema = {"minimum": low, "maximum": high, "pattern": _or_variable("[0-9]+")}
    return ValueType(("integer", "string"), schema, remedy="write a whole number", low=low, high=high)


def _is_identifier(name: str) -> str:
    usable = 0 < len(name.encode()) <= 63 and "\0" not in name
    return "" if usable else "use at most 63 bytes"


def _is_publication(name: str) -> str:
    # Debezium passes it to pgoutput inside a comma-separated list of names.
    usable = not _is_identifier(name) and re.fullmatch(r"\w[\w-]*", name)
    return "" if usable else "use at most 63 bytes of letters, digits, '_' and '-'"


def is_aggregate_type(name: str) -> str:
    """Return "" for a valid aggregate type, otherwise a description of a valid one."""
    usable = re.fullmatch(record.AGGREGATE_TYPE_PATTERN, name) and name not in (".", "..")
    if usable and len(name) <= record.MAX_AGGREGATE_TYPE:
        return ""
    return f"use at most {record.MAX_AGGREGATE_TYPE} letters, digits, '.', '_' and '-'"


def _is_topic_template(template: str) -> str:
    before, placeholder, after = template.partition(TOPIC_PLACEHOLDER)
    rest = before + after
    room = record.MAX_TOPIC - record.MAX_AGGREGATE_TYPE
    if not placeholder:
        return f"it must contain {TOPIC_PLACEHOLDER}"
    if rest and not re.fullmatch(r"[a-zA-Z0-9._-]+", rest):
        return "besides the placeholder use letters, digits, '.', '_' and '-'"
    return "" if len(rest) <= room else f"use at most {room} characters besides the placeholder"


def _is_ssl_mode(mode: str) -> str:
    return "" if mode in SSL_MODES else nearest(mode, SSL_MODES)


def is_base_url(url: str) -> str:
    """Return "" for a valid address of a REST API, otherwise a description of a valid one."""
    try:
        parts = urlsplit(url)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        return "write http://host:8083 or https://host/path"
    usable = parts.scheme in ("http", "https") and parts.hostname and port_ok
    usable = usable and not parts.query and not parts.fragment and not re.search(r"\s", url)
    return "" if usable else "write http://host:8083 or https://host/path"


SECTION: Final = ValueType(("object",), {})
TOPICS: Final = ValueType(
    ("object",),
    {
        "propertyNames": {"pattern": rf"^[a-zA-Z0-9._-]{{1,{record.MAX_AGGREGATE_TYPE}}}$"},
    },
)
_PROPERTY: Final = {"type": ["string", "number", "boolean"]}
PROPERTIES: Final = ValueType(("object",), {"additionalProperties": _PROPERTY})
KAFKA_CLIENT: Final = ValueType(("object",), {**PROPERTIES.schema, "required": ["bootstrap.servers"]})

TEXT: Final = ValueType(("string",), {})
SOME_TEXT: Final = ValueType(("string",), {"minLength": 1})
TEXTS: Final = ValueType(("array",), {"items": {"type": "string", "minLength": 1}})
_IDENTIFIER_SCHEMA: Final = {"minLength": 1, "maxLength": 63}
IDENTIFIER: Final = ValueType(("string",), {**_IDENTIFIER_SCHEMA}, _is_identifier)
IDENTIFIERS: Final = ValueType(
    ("array",), {"items": {"type": "string", **_IDENTIFIER_SCHEMA}}, _is_identifier
)
PUBLICATION: Final = ValueType(("string",), {**_IDENTIFIER_SCHEMA}, _is_publication)

# `_outbox` is added for the slot, whose name PostgreSQL keeps within 63 of these characters.
PIPELINE: Final = _matching(r"[a-z0-9_]{1,56}", "use at most 56 lower-case letters, digits and underscores")
SLOT: Final = _matching(r"[a-z0-9_]{1,63}", "use at most 63 lower-case letters, digits and underscores")
# Debezium replaces other characters when it derives a topic from the name, and lists are split at
# commas; a name that survives both unchanged cannot be misread.
TABLE: Final = _matching(
    r"([A-Za-z_][A-Za-z0-9_-]{0,62}\.)?[A-Za-z_][A-Za-z0-9_-]{0,62}",
    "write schema.table, each of letters, digits, '_' and '-'",
)
CONNECT_NAME: Final = _matching(r"[A-Za-z0-9._-]{1,200}", "use at most 200 letters, digits, '.', '_' and '-'")
TOPIC_TEMPLATE: Final = _text(r"[a-zA-Z0-9._-]*\{aggregate_type\}[a-zA-Z0-9._-]*", _is_topic_template)
SSL_MODE: Final = _text("|".join(SSL_MODES), _is_ssl_mode)
URL: Final = _text(r"https?://[^@\s]+")
# A reference that Connect resolves, or one to a variable that may hold such a reference.
REFERENCE: Final = ValueType(
    ("string",),
    {
        "pattern": r"^$|^\$\{[A-Za-z0-9_.-]+:(?!-)[^}]*\}$|\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}",
    },
)

FLAG: Final = ValueType(
    ("boolean", "string"),
    {"pattern": _or_variable("true|false|yes|no|on|off")},
    remedy="write true or false",
)
PAYLOAD: Final = _one_of(Payload)
PARTITIONING: Final = _one_of(Partitioning)
_DURATION_WORDS: Final = (
    r"(\s*(\d+(\.\d+)?\s*(ms|[sS]|[sS]ecs?|[sS]econds?|[mM]|[mM]ins?|[mM]inutes?|[hH]|[hH]ours?"
    r"|[dD]|[dD]ays?|[wW]|[wW]eeks?)\s*)+)"
)
DURATION: Final = _text(_DURATION_WORDS, remedy="write it like 30s, 4h, 7 days or 1h 30m")
TICKER: Final = ValueType(
    ("string", "boolean"),
    {
        "not": {"const": True},
        "pattern": _or_variable(f"off|no|false|Off|OFF|{_DURATION_WORDS}"),
    },
    remedy=f"{DURATION.remedy}, or off",
)
DISK: Final = _text(
    r"unknown|/.*|\s*\d+(\.\d+)?\s*([kKmMgGtT]([iI])?)?[bB]\s*",
    remedy="write unknown, an absolute path, or a size like 200GB",
)
