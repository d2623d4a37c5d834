"""A proxy in front of PostgreSQL that cuts connections in the middle of COMMIT.

Cut before, the COMMIT never reaches the server, which rolls back. Cut after, the server has committed and
its answer never reaches the client. The client sees the same in both cases: a lost connection.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, TypeAlias

Where: TypeAlias = Literal["before", "after"]

COMMIT = b"COMMIT\0"  # the text of the query, and the tag of the answer
PREPARED = re.compile(rb"(_pg3_\w+)\0COMMIT\0")  # psycopg prepares what it has seen five times


class CommitCutter:
    """Cuts one COMMIT for each `cut`, whoever sends it next, and counts what it did."""

    def __init__(self, host: str, port: int) -> None:
        self.done: dict[Where, int] = {"before": 0, "after": 0}
        self.port = 0
        self._server = (host, port)
        self._wanted: deque[Where] = deque()

    def cut(self, where: Where) -> None:
        """Cut the next COMMIT there."""
        self._wanted.append(where)

    @contextmanager
    def running(self) -> Iterator[CommitCutter]:
        """Listen on `port` while the block runs."""
        loop = asyncio.new_event_loop()
        listener = loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = listener.sockets[0].getsockname()[1]
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(_end(listener), loop).result(30)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        writers = [to_client]
        try:
            server, to_server = await asyncio.open_connection(*self._server)
            writers.append(to_server)
            link = _Link(self, to_client, to_server)
            pumps = [
                asyncio.ensure_future(link.questions(client)),
                asyncio.ensure_future(link.answers(server)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass  # the server is down: the client finds its connection closed
        finally:
            for writer in writers:
                writer.transport.abort()

    def take(self) -> Where | None:
        """Say whether this COMMIT is one to cut."""
        if not self._wanted:
            return None
        where = self._wanted.popleft()
        self.done[where] += 1
        return where


class _Link:
    """One connection through the proxy."""

    def __init__(
        self, cutter: CommitCutter, to_client: asyncio.StreamWriter, to_server: asyncio.StreamWriter
    ) -> None:
        self._cutter = cutter
        self._to_client = to_client
        self._to_server = to_server
        self._prepared = COMMIT
        self._deaf = False

    async def questions(self, client: asyncio.StreamReader) -> None:
        while data := await client.read(65536):
            if named := PREPARED.search(data):
                self._prepared = b"\0" + named[1] + b"\0"
            if COMMIT in data or self._prepared in data:
                where = self._cutter.take()
                if where == "before":
                    return
                self._deaf = where == "after"
            self._to_server.write(data)
            await self._to_server.drain()

    async def answers(self, server: asyncio.StreamReader) -> None:
        while data := await server.read(65536):
            if not self._deaf:
                self._to_client.write(data)
                await self._to_client.drain()
            elif COMMIT in data:
                return


async def _end(listener: asyncio.Server) -> None:
    listener.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*others, return_exceptions=True)
