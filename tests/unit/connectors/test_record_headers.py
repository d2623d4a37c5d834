from __future__ import annotations

import pytest
from confluent_kafka import Message

from outbox_connectors.record_headers import Headers, header_value, read_headers


class Unreadable:
    """A record whose header has a name that is no UTF-8, as confluent-kafka 2.16.1 answers for it."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error
        self._headers: Headers | None = None
        self.asked = 0

    def headers(self) -> Headers:
        """Raise, as the client does the first time."""
        if self._headers is not None:
            return self._headers
        self.asked += 1
        if self._error is UnicodeDecodeError:
            b"\xff".decode()
        raise self._error("<method 'headers'> returned a result with an exception set")

    def set_headers(self, value: Headers) -> None:
        """Replace the headers."""
        self._headers = value


@pytest.mark.parametrize("error", [SystemError, UnicodeDecodeError])
def test_headers_that_the_client_cannot_read_raise_nothing(error: type[Exception]) -> None:
    assert read_headers(Unreadable(error)) is None


def test_headers_that_the_client_cannot_read_are_not_asked_for_twice() -> None:
    """The second answer holds NULL pointers, see `give_up_headers`."""
    record = Unreadable(SystemError)
    assert [read_headers(record) for _ in range(3)] == [None, None, None]
    assert record.asked == 1


def test_headers_keep_their_order_and_repetitions() -> None:
    written: Headers = [("b", b"1"), ("a", None), ("b", b"2")]
    assert read_headers(Message("topic", 0, 0, b"", b"", written)) == written


def test_a_record_without_headers_has_none_of_them() -> None:
    assert read_headers(Message("topic", 0, 0, b"", b"", None)) == []


def test_a_value_is_found_by_name_wherever_it_stands() -> None:
    headers: Headers = [("other", b"0"), ("id", b"1"), ("id", b"2")]
    assert header_value(headers, "id", 0) == b"1"
    assert header_value(headers, "id", 1) == b"1"
    assert header_value(headers, "absent", 0) is None
    assert header_value([("id", "text")], "id", 0) == b"text"
