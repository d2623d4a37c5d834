"""Servers that are killed: the relay waits, goes on, and nothing is lost or doubled."""

from __future__ import annotations

import signal
import time

import pytest

from fix_relay import Relayed
from waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.stack, pytest.mark.slow]


@pytest.mark.parametrize("service", ["kafka", "postgres"])
def test_a_server_is_killed_under_load(relayed: Relayed, service: str) -> None:
    server = relayed.site.database.server
    process = relayed.start("--workers", "2", "--batch", "200")
    for _ in range(2):
        relayed.write(5000)
        relayed.await_left(4500)  # it is at work
        server.kill(service)
        time.sleep(1)
        server.start(service)
        relayed.write(500)
        relayed.await_left(0)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, output
    assert "Traceback" not in output
    assert relayed.ledger().clean
