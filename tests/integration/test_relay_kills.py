"""Kills, freezes and lost connections: a read_committed reader sees every event once, in order."""

from __future__ import annotations

import os
import signal
import time

import pytest

from fix_relay import NewRelayed
from relay_victim import POINTS
from waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.stack, pytest.mark.slow]


def test_killed_at_every_step(new_relayed: NewRelayed) -> None:
    relayed = new_relayed(shards=2)
    for point in POINTS:
        for times in (1, 3):
            relayed.write(1200)
            process = relayed.victim(point, 1 if point == "in take-over" else times)
            output, _ = process.communicate(timeout=PATIENCE_SECONDS)
            assert process.returncode == -signal.SIGKILL, f"{point}: {output}"
    assert relayed.left() > 0
    counters = relayed.until_empty()
    print(counters)
    assert relayed.ledger().clean


def test_a_zombie_wakes_up_after_another_took_its_shards(new_relayed: NewRelayed) -> None:
    relayed = new_relayed(shards=2)
    zombie = relayed.victim("never")
    for _ in range(3):
        relayed.write(4000)
        os.kill(zombie.pid, signal.SIGSTOP)  # most likely in the middle of a batch
        other = relayed.start("--batch", "200")
        relayed.await_left(0)  # the other one has everything: PostgreSQL ended the frozen session
        relayed.write(2000)
        os.kill(zombie.pid, signal.SIGCONT)
        relayed.await_left(0)
        other.send_signal(signal.SIGTERM)
        output, _ = other.communicate(timeout=PATIENCE_SECONDS)
        assert other.returncode == 0, output
    relayed.write(500)
    relayed.await_left(0)  # the zombie is a good worker again
    assert zombie.poll() is None
    assert relayed.ledger().clean


def test_the_session_is_ended_while_batches_are_in_flight(new_relayed: NewRelayed) -> None:
    relayed = new_relayed(shards=2)
    process = relayed.start("--batch", "200", "--workers", "2")
    ended = 0
    for _ in range(8):
        relayed.write(1500)
        with relayed.connect() as conn:
            row = conn.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name LIKE 'outboxctl relay %'"
            ).fetchone()
        assert row is not None
        ended += row[0]
        time.sleep(0.3)
    assert ended >= 8
    relayed.await_left(0)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, output
    assert relayed.ledger().clean
