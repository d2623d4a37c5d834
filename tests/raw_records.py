"""Write records that Kafka's clients refuse to write: header names of any bytes, as a stranger may.

The confluent client takes header names as text only, Kafka itself does not look at them. So the record batch
(magic 2) and the Produce request (version 3, the oldest that Kafka 4 takes) are made here by hand, after
https://kafka.apache.org/documentation/#recordbatch and https://kafka.apache.org/protocol#The_Messages_Produce.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

NOT_UTF8: Final = b"\xff\xfename"  # a header name that no client can decode

_PATIENCE: Final = 30.0
_PRODUCE: Final = 0
_VERSION: Final = 3
_ALL_REPLICAS: Final = -1
_POLYNOMIAL: Final = 0x82F63B78  # CRC-32C, reflected


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A record whose every part is bytes. `timestamp` in milliseconds; None: now; -1: the record has none."""

    value: bytes | None = None
    key: bytes | None = None
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    timestamp: int | None = None


def write_raw(bootstrap: str, topic: str, records: Sequence[RawRecord], partition: int = 0) -> int:
    """Append records to a partition in one batch and return the offset of the first.

    `bootstrap` must be the partition's leader, which it is where there is one broker, and take plain
    connections. Raises RuntimeError with Kafka's error code when the broker refuses.
    """
    batch = _batch(records, int(time.time() * 1000))
    partitions = struct.pack("!ii", 1, partition) + struct.pack("!i", len(batch)) + batch
    topics = struct.pack("!i", 1) + _text(topic) + partitions
    body = struct.pack("!hhi", -1, _ALL_REPLICAS, int(_PATIENCE * 1000)) + topics
    request = struct.pack("!hhi", _PRODUCE, _VERSION, 1) + _text("raw-records") + body
    answer = _ask(bootstrap, request)
    # correlation id, number of topics, the topic's name, number of partitions, the partition
    start = 4 + 4 + 2 + len(topic.encode()) + 4 + 4
    error, offset = struct.unpack_from("!hq", answer, start)
    if error:
        raise RuntimeError(f"Kafka refuses the records for {topic}/{partition}: error code {error}")
    return int(offset)


def _ask(bootstrap: str, request: bytes) -> bytes:
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    with socket.create_connection((host, int(port)), _PATIENCE) as connection:
        connection.sendall(struct.pack("!i", len(request)) + request)
        with connection.makefile("rb") as answers:
            (length,) = struct.unpack("!i", answers.read(4))
            return answers.read(int(length))


def _batch(records: Sequence[RawRecord], now: int) -> bytes:
    stamps = [now if record.timestamp is None else record.timestamp for record in records]
    made = [_record(record, at, stamps[at] - stamps[0]) for at, record in enumerate(records)]
    last = len(records) - 1
    # attributes, last offset delta, first and highest timestamp, no producer id, epoch or sequence, count
    checked = struct.pack("!hiqqqhii", 0, last, stamps[0], max(stamps), -1, -1, -1, len(records))
    checked += b"".join(made)
    counted = struct.pack("!ibI", -1, 2, _crc32c(checked)) + checked
    return struct.pack("!qi", 0, len(counted)) + counted


def _record(record: RawRecord, offset: int, milliseconds: int) -> bytes:
    headers = b"".join(_sized(name) + _sized(value) for name, value in record.headers)
    body = b"\0" + _varint(milliseconds) + _varint(offset) + _sized(record.key) + _sized(record.value)
    body += _varint(len(record.headers)) + headers
    return _varint(len(body)) + body


def _sized(value: bytes | None) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value


def _varint(number: int) -> bytes:
    """Encode a number as Protocol Buffers do: zigzag, seven bits a byte, the lowest first."""
    left = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)


def _text(value: str) -> bytes:
    return struct.pack("!h", len(value.encode())) + value.encode()


def _crc32c(content: bytes) -> int:
    checksum = 0xFFFFFFFF
    for byte in content:
        checksum ^= byte
        for _ in range(8):
            checksum = checksum >> 1 ^ (_POLYNOMIAL if checksum & 1 else 0)
    return checksum ^ 0xFFFFFFFF
