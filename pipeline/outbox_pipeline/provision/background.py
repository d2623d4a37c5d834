"""Do something beside something else, and ask for its result later."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")


def start(work: Callable[[], Result]) -> Future[Result]:
    """Run `work` in a thread of its own, which keeps no process alive: after Ctrl-C nobody waits for it."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future
