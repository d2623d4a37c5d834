"""Standard output and error whose readers may leave, as `head` does.

SIGPIPE is ignored: it kills a process for any socket whose other end has gone, also for a client of an
HTTP port. What is written to a standard stream without a reader is discarded instead, so a command that
changes something comes to its end, and every command keeps its own exit code.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Outlet(io.FileIO):
    """The file of a standard stream; what is written after its reader has left is discarded."""

    reader_gone = False

    def write(self, data: ReadableBuffer, /) -> int:
        if not self.reader_gone:
            try:
                return super().write(data)
            except (BrokenPipeError, ConnectionResetError):  # the second where the stream is a socket
                self.reader_gone = True
        return memoryview(data).nbytes


def outlive_readers() -> None:
    """Ignore SIGPIPE, and go on when nobody reads stdout or stderr any more.

    Child processes that subprocess starts get the signal's default action back (`restore_signals`).
    A stream that was closed when the process began becomes the null device: else the next connection
    would get its number, and what a library prints would go there.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.stdout = _opened(sys.stdout, 1)
    sys.stderr = _opened(sys.stderr, 2)


def reader_gone() -> bool:
    """Say whether nobody reads stdout any more, as far as the last write has shown."""
    buffer = getattr(sys.stdout, "buffer", None)
    outlet = getattr(buffer, "raw", buffer)
    return isinstance(outlet, _Outlet) and outlet.reader_gone


def _opened(stream: TextIO | None, number: int) -> TextIO:
    if stream is None:
        null = os.open(os.devnull, os.O_WRONLY)
        if null != number:
            os.dup2(null, number)
            os.close(null)
        return io.TextIOWrapper(io.FileIO(number, "w", closefd=False), "utf-8", write_through=True)
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    outlet = _Outlet(number, "w", closefd=False)
    outlet.name = stream.name
    buffer = outlet if stream.write_through else io.BufferedWriter(outlet)
    return io.TextIOWrapper(
        buffer,
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
