"""A relay's worker that kills itself (SIGKILL) at a given point of its work: `FILE POINT TIMES`.

Run as a program. The points are the steps between which a crash must lose and repeat nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any
from unittest import mock

from outbox_connectors.loading import load
from outbox_pipeline import relay
from outbox_pipeline.relay import session
from outbox_pipeline.relay.producer import ShardProducer
from outbox_pipeline.relay.session import RelaySession

POINTS = (
    "before read",
    "after read",
    "before produce",
    "after produce",
    "before commit",
    "after commit",
    "before delete",
    "after delete",
    "in take-over",
)


def main() -> None:
    """Relay until the point is reached, or until stopped."""
    path, point, times = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    left = times

    def die(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    arrange(point, die)
    mock.patch.object(session, "IDLE_SESSION_MS", 4000).start()
    relay.run(load(path, os.environ), relay.RelaySettings(batch=200), say=print, stop=Event())


def arrange(point: str, die: Callable[..., None]) -> None:
    """Call `die` whenever a worker comes to the point."""
    read, call, send, take = (
        RelaySession.next_rows,
        ShardProducer._call,
        ShardProducer._produce,
        ShardProducer.take_over,
    )

    def next_rows(self: RelaySession, *args: Any, **kwargs: Any) -> Any:
        publishes = kwargs["published"] is not None
        if point == "before read" or (point == "before delete" and publishes):
            die()
        rows = read(self, *args, **kwargs)
        if (point == "after read" and rows) or (point == "after delete" and publishes):
            die()
        return rows

    def transactional(self: ShardProducer, one: Any) -> None:
        name = getattr(one, "__name__", "")
        if point == "before commit" and name == "commit_transaction":
            die()
        call(self, one)
        if point == "after commit" and name == "commit_transaction":
            die()

    def produce(self: ShardProducer, at: int | None, made: Any, *partition: int) -> None:
        if point == "before produce" and at == 0:
            die()
        send(self, at, made, *partition)
        if point == "after produce" and at == 99:
            die()

    def take_over(self: ShardProducer) -> int | None:
        found = take(self)
        if point == "in take-over":
            die()
        return found

    mock.patch.object(RelaySession, "next_rows", next_rows).start()
    mock.patch.object(ShardProducer, "_call", transactional).start()
    mock.patch.object(ShardProducer, "_produce", produce).start()
    mock.patch.object(ShardProducer, "take_over", take_over).start()


if __name__ == "__main__":
    main()
