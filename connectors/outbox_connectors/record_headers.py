"""Read the headers of any Kafka record. Only this module asks the client for them."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import Any, Final, Protocol, TypeAlias

# What the client returns: bytes from Kafka, str only in messages that a test has built.
Headers: TypeAlias = list[tuple[str, str | bytes | None]]

# What the client raises for a header name that is not UTF-8 (confluent-kafka 2.16.1: the former).
HEADER_ERRORS: Final = (SystemError, UnicodeDecodeError)
# Asks the client so that its error is raised here. It must not be called from Python code directly: from the
# second call on CPython (3.11 to 3.14) calls such a method without checking whether it failed. Then an
# incomplete list is returned, and the error appears later in an unrelated call.
ask_headers: Final[Callable[[Any], Any]] = methodcaller("headers")
# Replaces headers that cannot be read; compared by identity.
_UNREADABLE: Final[Headers] = []


class Carrier(Protocol):
    """The part of `confluent_kafka.Message` used here; this package does not depend on the Kafka client."""

    def headers(self) -> Headers | dict[str, str | bytes | None] | None:
        """Return the headers; raises one of HEADER_ERRORS if a name is not UTF-8."""

    def set_headers(self, value: Headers) -> None:
        """Replace the headers."""


def read_headers(message: Carrier) -> Headers | None:
    """Read the headers of a record in their order; None, on every call, if they cannot be read.

    A record without headers has an empty list. Never raises: Kafka allows any bytes in a header's name, and
    for one that is not UTF-8 confluent-kafka (2.16.1) raises SystemError and returns no header at all.
    """
    try:
        found = ask_headers(message)
    except HEADER_ERRORS:
        give_up_headers(message)
        return None
    if found is _UNREADABLE:
        return None
    return list(found.items()) if isinstance(found, dict) else found or []


def give_up_headers(message: Carrier) -> None:
    """Mark a record's headers as unreadable. Must be called wherever the client raised one of HEADER_ERRORS.

    When asked again, confluent-kafka (2.16.1) returns the incomplete list: names that could not be decoded
    are NULL pointers in it, and any access to one ends the process with a segmentation fault.
    """
    message.set_headers(_UNREADABLE)


def header_value(headers: Headers, name: str, expected_at: int) -> bytes | None:
    """Return the value of the first header of that name, trying the index `expected_at` first."""
    if len(headers) > expected_at and headers[expected_at][0] == name:
        value = headers[expected_at][1]
    else:
        value = next((value for found, value in headers if found == name), None)
    return value.encode() if isinstance(value, str) else value
