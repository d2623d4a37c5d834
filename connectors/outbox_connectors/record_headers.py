"""Read the headers of a Kafka record, whoever wrote it: the one place that asks the client for them."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import Any, Final, Protocol, TypeAlias

# What the client gives: bytes from Kafka, str only in messages that a test has built.
Headers: TypeAlias = list[tuple[str, str | bytes | None]]

# What the client raises for a header whose name is no UTF-8 (confluent-kafka 2.16.1: the former).
HEADER_ERRORS: Final = (SystemError, UnicodeDecodeError)
# Asks the client, so that what it raises is raised here. The call must not stand in Python code: from the
# second time on CPython (3.11 to 3.14) calls such a method without looking whether it has failed. Then an
# unfinished list comes back, and the error appears later, out of some other call.
ask_headers: Final[Callable[[Any], Any]] = methodcaller("headers")
# What a record has in the place of headers that cannot be read; known by identity.
_UNREADABLE: Final[Headers] = []


class Carrier(Protocol):
    """What of `confluent_kafka.Message` is used here; this package does without Kafka's client."""

    def headers(self) -> Headers | dict[str, str | bytes | None] | None:
        """Give the headers, or raise where a name is no UTF-8."""

    def set_headers(self, value: Headers) -> None:
        """Replace the headers."""


def read_headers(message: Carrier) -> Headers | None:
    """Read the headers of a record in their order; None where they cannot be read, however often asked.

    A record without headers has an empty list. Never raises for what a stranger wrote: Kafka lets a
    header's name be any bytes, and for one that is not UTF-8 confluent-kafka raises SystemError
    (2.16.1). The whole list is out of reach then.
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
    """Remember in a record that its headers cannot be read. To be called wherever the client raised for them.

    Asked a second time, confluent-kafka (2.16.1) gives the list that it had begun: names that could not be
    decoded are NULL pointers in it, and whatever looks at one ends the process with a segmentation fault.
    """
    message.set_headers(_UNREADABLE)


def header_value(headers: Headers, name: str, expected_at: int) -> bytes | None:
    """Find the value of the first header of that name, looking first where our own records have it."""
    if len(headers) > expected_at and headers[expected_at][0] == name:
        value = headers[expected_at][1]
    else:
        value = next((value for found, value in headers if found == name), None)
    return value.encode() if isinstance(value, str) else value
