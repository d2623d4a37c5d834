"""A relay at work when the servers behind it become others, or lose what it relies on."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from subprocess import Popen
from threading import Event

import pytest
from confluent_kafka.admin import NewTopic

from asking import administrator
from fix_relay import NewRelayed, Relayed
from outbox_connectors.errors import ExitCode
from outbox_pipeline import relay
from outbox_pipeline.errors import Unreachable
from outbox_pipeline.relay import progress
from outbox_pipeline.relay.names import relay_names
from waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack


def end(process: Popen[str]) -> tuple[int, str]:
    out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, out


def test_a_failover_that_lost_the_end_of_the_log_is_noticed_at_work(new_relayed: NewRelayed) -> None:
    """The session comes back on a database that has not seen what Kafka has; nothing is published twice."""
    relayed = new_relayed(shards=1, notify=False)
    relayed.write(30)
    relayed.until_empty()
    relayed.write(20)
    relayed.copied()
    process = relayed.start()
    relayed.await_left(0)
    os.kill(process.pid, signal.SIGSTOP)
    relayed.restored()
    until(lambda: relayed.end_sessions() == 0, "the end of the worker's session")
    os.kill(process.pid, signal.SIGCONT)
    code, out = end(process)
    assert code == ExitCode.REFUSED, out
    assert "20 rows are in the topics already; the database is an older copy than Kafka has seen" in out
    assert "switch --to relay" in out
    ledger = relayed.ledger()
    assert (ledger.duplicated, ledger.missing) == (0, 0)


def test_an_admitted_copy_needs_no_second_proof(new_relayed: NewRelayed) -> None:
    """Where no row is in a topic, the numbers are set right: a session lost later proves nothing again."""
    relayed = new_relayed(shards=2)
    for _ in range(3):
        relayed.write(20)
        relayed.until_empty()
    with relayed.connect() as conn:
        conn.execute("UPDATE outbox_relay_batch SET n = 1, ids = '{}'")
        relayed.write(20)
        process = relayed.start()
        relayed.await_left(0)
        for _ in range(3):
            relayed.write(20)
            until(relayed.end_sessions, "a worker's session")
            relayed.await_left(0)
        behind = conn.execute("SELECT count(*) FROM outbox_relay_batch WHERE n < 4").fetchone()
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 0
    assert behind == (0,)
    assert relayed.ledger().clean


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_relay_ends_when_its_tables_are_gone(relayed: Relayed, workers: str) -> None:
    relayed.write(10)
    process = relayed.start("--workers", workers)
    relayed.await_left(0)
    with relayed.connect() as conn:
        conn.execute("ALTER TABLE outbox_relay_batch RENAME TO elsewhere")
    relayed.write(10)
    code, out = end(process)
    assert code == ExitCode.FAILED, out
    assert "outbox_relay_batch" in out
    assert "Traceback" not in out


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_stop_is_noticed_while_the_road_is_switched(relayed: Relayed, workers: str) -> None:
    lock = {"lock": relay_names(relayed.definition).lock}
    process = relayed.start("--workers", workers)
    with relayed.connect() as conn:
        until(lambda: relayed.sessions() == int(workers), "the workers' sessions")

        def closed() -> bool:
            """Shut the gate, as a switch does, with nobody inside."""
            relayed.end_sessions()
            row = conn.execute("SELECT pg_try_advisory_lock(hashtext(%(lock)s), 0)", lock).fetchone()
            return bool(row and row[0])

        until(closed, "the gate is shut")
        until(lambda: relayed.sessions() == int(workers), "the workers wait outside")
        process.send_signal(signal.SIGTERM)
        code, out = end(process)
    assert code == 0, out


def test_a_topic_of_numbers_that_lost_partitions_blames_no_row(
    relayed: Relayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it was deleted and the broker made it again by itself, while a relay is at work."""
    monkeypatch.setattr(progress, "MISSING_SECONDS", 2.0)
    topic = f"{relayed.definition.pipeline}.relay"
    admin = administrator(relayed.definition.kafka.client)
    config = {"cleanup.policy": "compact"}
    relayed.write(10)
    stop, settings = Event(), relay.RelaySettings()
    with ThreadPoolExecutor(1) as aside:
        working = aside.submit(relay.run, relayed.definition, settings, say=print, stop=stop)
        relayed.await_left(0)
        admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)
        again = NewTopic(topic, 1, 1, config=config)
        until(lambda: admin.create_topics([again])[topic].exception(PATIENCE_SECONDS) is None, "the topic")
        relayed.write(100)
        failure = working.exception(PATIENCE_SECONDS)
    assert isinstance(failure, Unreachable), failure
    assert failure.where == f"topic {topic}"
    assert "partition" in failure.problem
    assert "relay --init" in failure.remedy
    with relayed.connect() as conn:
        assert conn.execute("SELECT count(*) FROM outbox_dead_letter").fetchone() == (0,)
    mended = relayed.outboxctl("relay", "--init")
    assert mended.returncode == 0, mended.stderr
    relayed.until_empty()
    ledger = relayed.ledger()
    assert (ledger.missing, ledger.unexpected) == (0, 0)
