"""Millions of ids in little memory: split by their last byte into files, compared file by file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

BUCKETS: Final = 128
ID_BYTES: Final = 16
_FLUSH_BYTES: Final = 1 << 16


class Spool:
    """Ids of one source, in files below `folder`. Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.count = 0
        self._buffers = [bytearray() for _ in range(BUCKETS)]
        self._files: list[BinaryIO] = [
            (folder / f"{number}").open("w+b", buffering=0) for number in range(BUCKETS)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files:
            file.close()

    def add(self, ids: Iterable[bytes]) -> None:
        """Add ids of 16 bytes each. The last byte of a UUID is random in every version in use."""
        buffers = self._buffers
        count = 0
        for one in ids:
            buffers[one[15] & 127].extend(one)
            count += 1
        self.count += count
        for number, buffer in enumerate(buffers):
            if len(buffer) >= _FLUSH_BYTES:
                self._flush(number, buffer)

    def put(self, bucket: int, packed: bytes) -> None:
        """Add ids of one bucket, concatenated, as the server has packed them."""
        self.count += len(packed) // ID_BYTES
        buffer = self._buffers[bucket]
        buffer += packed
        if len(buffer) >= _FLUSH_BYTES:
            self._flush(bucket, buffer)

    def _flush(self, number: int, buffer: bytearray) -> None:
        self._files[number].write(buffer)
        buffer.clear()

    def buckets(self) -> Iterator[list[bytes]]:
        """Yield the ids of each bucket, in the order in which they came. More may be added afterwards."""
        for number, file in enumerate(self._files):
            self._flush(number, self._buffers[number])
            file.seek(0)
            data = file.read()
            yield [data[at : at + ID_BYTES] for at in range(0, len(data), ID_BYTES)]


@contextmanager
def temporary_spool() -> Iterator[Spool]:
    """Spool into temporary files that are deleted at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="outbox-ids-") as folder, Spool(Path(folder) / "spool") as spool:
        yield spool
