"""A switch that ends at a given step of its work: `FILE ROAD POINT` kills itself there (SIGKILL).

`interrupt` does the same to a switch in this process with whatever it is given to call.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

from outbox_connectors.loading import load
from outbox_pipeline import provision
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.ids import publisher
from outbox_pipeline.ids.publisher import Publisher
from outbox_pipeline.operations import switch
from outbox_pipeline.relay import worker
from outbox_pipeline.servers import postgres

# A point is behind a call of the switch: what it is called on, its name, and which call of it.
POINTS: Final[dict[str, dict[str, tuple[Any, str, int]]]] = {
    "relay": {
        "first sweep": (switch, "_archive_published", 1),
        "connector stopped": (ConnectClient, "stop", 1),
        "offset forgotten": (switch, "detach", 1),
        "second sweep": (switch, "_archive_published", 2),
        "slot dropped": (switch, "_drop_slot", 1),
        "road written": (publisher, "write", 1),
    },
    "cdc": {
        "slot made": (provision, "apply_postgres", 1),
        "fence set": (switch, "_set_cutover", 1),
        "a batch sent": (worker, "publish", 1),
        "rows carried": (switch, "_relay_rest", 1),
        "offset forgotten": (ConnectClient, "reset_offsets", 1),
        "connector resumed": (ConnectClient, "resume", 1),
        "connector proven": (switch, "_start_connector", 1),
    },
}


@contextmanager
def interrupt(to: str, point: str, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` behind a step of the switches in this block."""
    target, name, number = POINTS[to][point]
    done = getattr(target, name)
    calls = 0

    def step(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        answer = done(*args, **kwargs)
        calls += 1
        if calls == number:
            act()
        return answer

    with mock.patch.object(target, name, step):
        yield


def main() -> None:
    """Switch, and die at the point."""
    path, to, point = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    definition = load(path, os.environ)
    move = switch.to_relay if Publisher(to) is Publisher.RELAY else switch.to_cdc
    with (
        postgres.as_admin(definition, "outboxctl switch") as conn,
        ConnectClient(definition.connect) as client,
        interrupt(to, point, lambda: os.kill(os.getpid(), signal.SIGKILL)),
    ):
        move(conn, client, definition, say=print)


if __name__ == "__main__":
    main()
