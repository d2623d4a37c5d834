"""What a handler gets as `conn`: a connection that keeps it from ending the transaction it is in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any, Final, Self

import psycopg
from psycopg.abc import Params

from outbox_consumers.errors import TransactionEndedByHandler

_BEGINNING: Final = 40  # characters that hold the words we look for


class HandlerCursor(psycopg.Cursor[Any]):
    """A cursor that does not let a handler end the consumer's transaction."""

    def execute(
        self,
        query: Any,
        params: Params | None = None,
        *,
        prepare: bool | None = None,
        binary: bool | None = None,
    ) -> Self:
        """Execute unless the statement would end the transaction."""
        if ends_transaction(query):
            raise not_yours()
        super().execute(query, params, prepare=prepare, binary=binary)
        return self


class HandlerConnection(psycopg.Connection[Any]):
    """The connection a handler gets: everything works but ending the transaction it is in."""

    _mirror: Mirror | None = None
    _lasting: psycopg.Cursor[Any] | None = None

    @property
    def lasting_cursor(self) -> psycopg.Cursor[Any]:
        """The cursor of handlers that want one: the same for every event."""
        if self._lasting is None or self._lasting.closed:
            self._lasting = self.cursor()
        return self._lasting

    def commit(self) -> None:
        """Refuse: the consumer commits, when the handler has returned."""
        raise not_yours()

    def rollback(self) -> None:
        """Refuse: a handler that wants its effects undone raises."""
        raise not_yours()

    def wait_for(self, function: Callable[..., Coroutine[Any, Any, object]], argument: object) -> object:
        """Call an asynchronous handler with an AsyncConnection in the same transaction, until it ends."""
        if self._mirror is None:
            self._mirror = Mirror(self)
        return self._mirror.wait_for(function, argument)

    def close(self) -> None:
        """Close the connection and the event loop of its asynchronous handlers."""
        super().close()
        if self._mirror is not None:
            self._mirror.close()
            self._mirror = None


class AsyncHandlerCursor(psycopg.AsyncCursor[Any]):
    """The asynchronous twin of HandlerCursor."""

    async def execute(
        self,
        query: Any,
        params: Params | None = None,
        *,
        prepare: bool | None = None,
        binary: bool | None = None,
    ) -> Self:
        """Execute unless the statement would end the transaction."""
        if ends_transaction(query):
            raise not_yours()
        await super().execute(query, params, prepare=prepare, binary=binary)
        return self


class AsyncHandlerConnection(psycopg.AsyncConnection[Any]):
    """The asynchronous twin of HandlerConnection."""

    async def commit(self) -> None:
        """Refuse: the consumer commits, when the handler has returned."""
        raise not_yours()

    async def rollback(self) -> None:
        """Refuse: a handler that wants its effects undone raises."""
        raise not_yours()


class Mirror:
    """A second view on one libpq connection, for asynchronous handlers, with an event loop of its own.

    Claim and effects must be in one transaction, so both views share the connection; the thread uses one
    at a time. The loop runs only while a handler does: a task that outlives its handler stands still.
    """

    def __init__(self, conn: HandlerConnection) -> None:
        self._loop = asyncio.new_event_loop()
        self._conn = AsyncHandlerConnection(conn.pgconn)
        self._conn.cursor_factory = AsyncHandlerCursor
        # Both views would give their prepared statements the same names.
        self._conn.prepare_threshold = None

    def wait_for(self, function: Callable[..., Coroutine[Any, Any, object]], argument: object) -> object:
        """Run the handler to its end in this thread."""
        return self._loop.run_until_complete(function(self._conn, argument))

    def close(self) -> None:
        """Close the event loop; the connection is its owner's."""
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


def not_yours() -> TransactionEndedByHandler:
    """Say that the transaction is not the handler's to end."""
    return TransactionEndedByHandler(
        "a handler tried to end the transaction, which holds the claims of other events too",
        remedy="return to commit, raise to roll back, and use `with conn.transaction():` for a part",
    )


def ends_transaction(query: object) -> bool:
    """Say whether the statement would commit, roll back or restart the transaction.

    Looks at the first words only: a COMMIT hidden behind a comment or a semicolon is found afterwards
    by the state of the transaction.
    """
    if isinstance(query, psycopg.sql.SQL):
        query = query.as_string(None)
    if isinstance(query, bytes):
        query = query[:_BEGINNING].decode(errors="replace")
    return isinstance(query, str) and _begins_with_an_end(query[:_BEGINNING])


@lru_cache(maxsize=1024)  # asked for every statement of every event: 0.3 instead of 3 us
def _begins_with_an_end(beginning: str) -> bool:
    words = beginning.split(None, 2)
    if not words:
        return False
    first = words[0].rstrip(";").lower()
    second = words[1].lower() if len(words) > 1 else ""
    if first == "rollback":
        return second != "to"
    if first == "prepare":
        return second == "transaction"
    return first in ("commit", "abort", "end")
