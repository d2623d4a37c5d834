"""The connection that a handler gets as `conn`: it refuses to end the transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any, Final, Self

import psycopg
from psycopg.abc import Params

from outbox_consumers.errors import TransactionEndedByHandler

_PREFIX_LENGTH: Final = 40  # characters; enough for the first two words of a statement


class HandlerCursor(psycopg.Cursor[Any]):
    """A cursor that refuses statements that end the consumer's transaction."""

    def execute(
        self,
        query: Any,
        params: Params | None = None,
        *,
        prepare: bool | None = None,
        binary: bool | None = None,
    ) -> Self:
        """Execute a statement. Raises TransactionEndedByHandler if it would end the transaction."""
        if ends_transaction(query):
            raise transaction_ended()
        super().execute(query, params, prepare=prepare, binary=binary)
        return self


class HandlerConnection(psycopg.Connection[Any]):
    """The connection that a handler gets: a psycopg connection whose transaction it cannot end."""

    _async_view: AsyncView | None = None
    _reused_cursor: psycopg.Cursor[Any] | None = None

    @property
    def reused_cursor(self) -> psycopg.Cursor[Any]:
        """The cursor of handlers registered with `cursor=True`, the same for every event."""
        if self._reused_cursor is None or self._reused_cursor.closed:
            self._reused_cursor = self.cursor()
        return self._reused_cursor

    def commit(self) -> None:
        """Refuse: the consumer commits after the handler has returned."""
        raise transaction_ended()

    def rollback(self) -> None:
        """Refuse: to have its effects rolled back, a handler raises an exception."""
        raise transaction_ended()

    def wait_for(self, function: Callable[..., Coroutine[Any, Any, object]], argument: object) -> object:
        """Run an asynchronous handler to its end, on an AsyncConnection in the same transaction."""
        if self._async_view is None:
            self._async_view = AsyncView(self)
        return self._async_view.wait_for(function, argument)

    def close(self) -> None:
        """Close the connection and the event loop of its asynchronous handlers."""
        super().close()
        if self._async_view is not None:
            self._async_view.close()
            self._async_view = None


class AsyncHandlerCursor(psycopg.AsyncCursor[Any]):
    """The asynchronous counterpart of HandlerCursor."""

    async def execute(
        self,
        query: Any,
        params: Params | None = None,
        *,
        prepare: bool | None = None,
        binary: bool | None = None,
    ) -> Self:
        """Execute a statement. Raises TransactionEndedByHandler if it would end the transaction."""
        if ends_transaction(query):
            raise transaction_ended()
        await super().execute(query, params, prepare=prepare, binary=binary)
        return self


class AsyncHandlerConnection(psycopg.AsyncConnection[Any]):
    """The asynchronous counterpart of HandlerConnection."""

    async def commit(self) -> None:
        """Refuse: the consumer commits after the handler has returned."""
        raise transaction_ended()

    async def rollback(self) -> None:
        """Refuse: to have its effects rolled back, a handler raises an exception."""
        raise transaction_ended()


class AsyncView:
    """An AsyncConnection on the same libpq connection, for asynchronous handlers, with its own event loop.

    Claim and effects must be in one transaction, so both share the connection; the thread uses one of them
    at a time. The loop runs only during a handler call: a task that the handler leaves behind is suspended.
    """

    def __init__(self, conn: HandlerConnection) -> None:
        self._loop = asyncio.new_event_loop()
        self._conn = AsyncHandlerConnection(conn.pgconn)
        self._conn.cursor_factory = AsyncHandlerCursor
        # Both connections would give their prepared statements the same names.
        self._conn.prepare_threshold = None

    def wait_for(self, function: Callable[..., Coroutine[Any, Any, object]], argument: object) -> object:
        """Run the handler in this thread until it ends."""
        return self._loop.run_until_complete(function(self._conn, argument))

    def close(self) -> None:
        """Close the event loop, not the connection."""
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


def transaction_ended() -> TransactionEndedByHandler:
    """Return the error for a handler that tried to end the transaction."""
    return TransactionEndedByHandler(
        "a handler tried to end the transaction, which holds the claims of other events too",
        remedy="return to commit, raise to roll back, and use `with conn.transaction():` for a part",
    )


def ends_transaction(query: object) -> bool:
    """Return whether the statement would commit, roll back or restart the transaction.

    Looks at the first two words only: a COMMIT after a comment or a semicolon is detected afterwards
    by the state of the transaction.
    """
    if isinstance(query, psycopg.sql.SQL):
        query = query.as_string(None)
    if isinstance(query, bytes):
        query = query[:_PREFIX_LENGTH].decode(errors="replace")
    return isinstance(query, str) and _ends_transaction(query[:_PREFIX_LENGTH])


@lru_cache(maxsize=1024)  # called for every statement of every event: 0.3 instead of 3 us
def _ends_transaction(beginning: str) -> bool:
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
