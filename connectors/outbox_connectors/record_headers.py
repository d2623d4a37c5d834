"""Read the headers of a Kafka record, whoever wrote it: the one place that asks the client for them."""

from __future__ import annotations

from typing import Protocol, TypeAlias

# What the client gives: bytes from Kafka, str only in messages that a test has built.
Headers: TypeAlias = list[tuple[str, str | bytes | None]]


class Carrier(Protocol):
    """What of `confluent_kafka.Message` is read here; this package does without Kafka's client."""

    def headers(self) -> Headers | dict[str, str | bytes | None] | None:
        """Give the headers, or raise where a name is no UTF-8."""


def read_headers(message: Carrier) -> Headers | None:
    """Read the headers of a record in their order; None where they cannot be read.

    A record without headers has an empty list. Never raises for what a stranger wrote: Kafka lets a
    header's name be any bytes, and for one that is not UTF-8 confluent-kafka raises SystemError
    (2.16.1). The whole list is out of reach then.
    """
    try:
        found = message.headers()
    except (SystemError, UnicodeDecodeError):
        return None
    return list(found.items()) if isinstance(found, dict) else found or []


def header_value(headers: Headers, name: str, expected_at: int) -> bytes | None:
    """Find the value of the first header of that name, looking first where our own records have it."""
    if len(headers) > expected_at and headers[expected_at][0] == name:
        value = headers[expected_at][1]
    else:
        value = next((value for found, value in headers if found == name), None)
    return value.encode() if isinstance(value, str) else value
