"""Ids by the million in little memory: cut by their last byte into files, compared file by file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

BUCKETS: Final = 128
ID_BYTES: Final = 16
_FLUSH_BYTES: Final = 64 * ID_BYTES * 16


class Spool:
    """Ids of one source, in files below `folder`. Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.count = 0
        self._buffers = [bytearray() for _ in range(BUCKETS)]
        self._files: list[BinaryIO] = [(folder / f"{number}").open("w+b") for number in range(BUCKETS)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files:
            file.close()

    def add(self, ids: Iterable[bytes]) -> None:
        """Take ids of 16 bytes each. The last byte of a UUID is random in every version in use."""
        buffers = self._buffers
        for one in ids:
            buffer = buffers[one[15] % BUCKETS]
            buffer += one
            self.count += 1
            if len(buffer) >= _FLUSH_BYTES:
                self._files[one[15] % BUCKETS].write(buffer)
                buffer.clear()

    def buckets(self) -> Iterator[list[bytes]]:
        """Yield the ids of each bucket, in the order in which they came. After the last `add`."""
        for number, (file, buffer) in enumerate(zip(self._files, self._buffers, strict=True)):
            file.write(buffer)
            self._buffers[number] = bytearray()
            file.seek(0)
            data = file.read()
            yield [data[at : at + ID_BYTES] for at in range(0, len(data), ID_BYTES)]
