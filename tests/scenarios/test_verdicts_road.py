"""Verdicts that need the whole road: real Kafka, Kafka Connect and Debezium, on a stack that may be broken.

One pipeline for all of them, in this order: the last ones leave slot, offset and server at odds for good.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer

import wal_forecasts
from asking import administrator
from fix_scene import STACK, Scene, applied
from fix_stack import _instance, run
from outbox_pipeline.servers import lsn, topics
from outbox_pipeline.watch.history import History
from outbox_pipeline.watch.sample import KafkaSample, Sample
from outbox_pipeline.watch.sampling import Sampler
from outbox_pipeline.watch.thresholds import MIB, Thresholds
from outbox_pipeline.watch.verdict import VerdictKey
from replication_client import Manner, consuming
from waiting import until
from wal_forecasts import Foretold

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(1800)]

# The product's own, but for how long a restart may take: a slow machine is no fault of the pipeline.
UNHURRIED = replace(Thresholds(), stuck=3600.0, stalled_critical=3600.0)


def test_healthy_load(scene: Scene) -> None:
    with scene.load():
        scene.expect(VerdictKey.HEALTHY, steady=10)


def test_status_as_a_user_runs_it(scene: Scene) -> None:
    with scene.load():
        scene.expect(VerdictKey.HEALTHY)
        done = scene.outboxctl("status", "--json")
        assert done.returncode == 0, done.stdout
        assert '"verdict": "healthy"' in done.stdout
        assert scene.outboxctl("slots").returncode == 0


def test_paused(scene: Scene) -> None:
    with scene.load():
        scene.client.pause(scene.definition.connect.connector)
        scene.expect(VerdictKey.CONNECTOR_PAUSED)
        scene.client.resume(scene.definition.connect.connector)
        scene.expect(VerdictKey.HEALTHY)


def test_stopped(scene: Scene) -> None:
    with scene.load():
        scene.client.stop(scene.definition.connect.connector)
        scene.expect(VerdictKey.CONNECTOR_STOPPED)
        scene.client.resume(scene.definition.connect.connector)
        scene.expect(VerdictKey.HEALTHY)


def test_task_failed(scene: Scene) -> None:
    user = scene.definition.postgres.connector.user
    password = scene.stack.environ["OUTBOX_CDC_PASSWORD"]
    with scene.connect() as conn, scene.load():
        conn.execute(f"ALTER ROLE {user} PASSWORD 'another'")
        conn.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (user,))
        verdict = scene.expect(VerdictKey.TASK_FAILED)
        assert "password" in verdict.cause
        conn.execute(f"ALTER ROLE {user} PASSWORD '{password}'")
        scene.client.restart(scene.definition.connect.connector, only_failed=True)
        scene.expect(VerdictKey.HEALTHY)


def test_taken_by_another_client(scene: Scene) -> None:
    name = scene.definition.connect.connector
    with scene.load():
        scene.client.stop(name)
        scene.expect(VerdictKey.CONNECTOR_STOPPED)
        postgres = scene.definition.postgres
        conninfo = scene.stack.conninfo("scene")
        with consuming(
            conninfo, postgres.slot, postgres.publication, Manner.NEVER_CONFIRMS, "pg_recvlogical"
        ):
            scene.client.resume(name)
            scene.expect(VerdictKey.SLOT_TAKEN)
        scene.expect(VerdictKey.HEALTHY)


def test_worker_frozen(scene: Scene) -> None:
    with scene.setting(wal_sender_timeout="0"), scene.load():  # or the server soon ends the session
        scene.expect(VerdictKey.HEALTHY)
        with scene.stack.frozen("connect"):
            verdict = scene.expect(VerdictKey.CONSUMER_FROZEN, steady=0)
        assert "Debezium" in verdict.cause
        scene.expect(VerdictKey.HEALTHY)


def test_worker_killed(scene: Scene) -> None:
    with scene.load():
        scene.stack.kill("connect")
        scene.expect(VerdictKey.CONNECT_UNREACHABLE)
        scene.stack.start("connect")
        scene.expect(VerdictKey.HEALTHY)


def test_broker_killed_as_status_tells_it(scene: Scene) -> None:
    """The worker keeps its state in Kafka: it soon lets go of the slot and answers nothing any more."""
    with scene.load():
        assert scene.await_status(VerdictKey.HEALTHY)["exit"] == 0
        scene.stack.kill("kafka")
        try:
            told = scene.await_status(VerdictKey.KAFKA_UNREACHABLE, VerdictKey.SINK_NOT_ACKING)
            assert told["exit"] in (4, 5)
            assert told["next_step"]
        finally:
            scene.stack.start("kafka")
        assert scene.await_status(VerdictKey.CATCHING_UP, VerdictKey.HEALTHY)["exit"] == 0
        assert scene.await_status(VerdictKey.HEALTHY)["exit"] == 0
        scene.expect(VerdictKey.HEALTHY)


def test_broker_that_takes_nothing(scene: Scene) -> None:
    """Kafka answers, but the topic is gone: Connect's producer waits for it for ever, the task RUNNING."""
    topic = scene.definition.kafka.topic_of("order")
    admin = administrator(scene.definition.kafka.client)
    with scene.load():
        scene.expect(VerdictKey.HEALTHY)
        admin.delete_topics([topic], operation_timeout=10)[topic].result()
        try:
            verdict = scene.expect(VerdictKey.SINK_NOT_ACKING)
            assert topic in verdict.cause
        finally:
            topics.create(scene.definition.kafka, [scene.definition.kafka.aggregates["order"]])
        scene.expect(VerdictKey.HEALTHY)


def test_quiet_outbox_without_ticker(scene: Scene) -> None:
    with scene.connect() as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS elsewhere (x text)")
        scene.write(1)
        stop = threading.Event()

        def fill() -> None:
            while not stop.wait(0.5):
                conn.execute(
                    "INSERT INTO elsewhere SELECT string_agg(md5(random()::text), '')"
                    " FROM generate_series(1, 20000) n GROUP BY n % 400"
                )

        thread = threading.Thread(target=fill)
        thread.start()
        try:
            verdict = scene.expect(VerdictKey.HEARTBEAT_MISSING)
            assert "ticker" in verdict.cause
            with scene.load(events=False):
                scene.expect(VerdictKey.HEALTHY)
        finally:
            stop.set()
            thread.join()
            conn.execute(
                "TRUNCATE elsewhere"
            )  # or its first vacuum writes as much WAL once more, at some time


def test_group_that_stopped_or_lags(scene: Scene) -> None:
    watched = replace(scene.definition, watch=replace(scene.definition.watch, groups=("readers",)))
    scene.sampler = Sampler.of(watched)
    topic = scene.definition.kafka.topic_of("order")
    settings = {
        **scene.definition.kafka.client,
        "group.id": "readers",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    with scene.load():
        scene.expect(VerdictKey.GROUP_STOPPED)  # it never ran
        consumer.subscribe([topic])
        stop = threading.Event()

        def crawl() -> None:
            while not stop.is_set():
                message = consumer.poll(0.2)
                if message is not None and message.error() is None:
                    with suppress(Exception):
                        consumer.commit(message=message, asynchronous=False)
                    stop.wait(1)

        thread = threading.Thread(target=crawl)
        thread.start()
        try:
            verdict = scene.expect(VerdictKey.GROUP_LAGGING)
            assert "readers" in verdict.cause
        finally:
            stop.set()
            thread.join()
            consumer.close()
        scene.expect(VerdictKey.GROUP_STOPPED)


@pytest.mark.parametrize("service", ["connect", "postgres", "kafka"])
def test_a_restart_is_no_critical_verdict(scene: Scene, service: str) -> None:
    """With the product's own thresholds: a restart warns at most, and ends healthy."""
    scene.thresholds = UNHURRIED
    scene.history = History()  # the scenes before wrote WAL in bursts, which the forecast rightly remembers
    with scene.load():
        scene.expect(VerdictKey.HEALTHY)
        scene.critical.clear()
        with ThreadPoolExecutor(1) as aside:
            restart = aside.submit(_restart, scene, service)
            while not restart.done():
                scene.look()
                time.sleep(0.5)
            restart.result()
        scene.expect(VerdictKey.HEALTHY, steady=10)
    assert not scene.critical


def _restart(scene: Scene, service: str) -> None:
    scene.stack.stop(service)
    scene.stack.start(service)


def test_a_rebalance_is_no_critical_verdict(scene: Scene) -> None:
    """With the product's own thresholds: a member that joins and leaves is nothing to speak of."""
    scene.thresholds = UNHURRIED
    watched = replace(scene.definition, watch=replace(scene.definition.watch, groups=("balanced",)))
    scene.sampler = Sampler.of(watched)

    def members(count: int) -> Callable[[], bool]:
        return lambda: bool(scene.look()) and _members(scene.sample) == count

    with scene.load(), scene.reading("balanced"):
        scene.expect(VerdictKey.HEALTHY)
        scene.critical.clear()
        for _ in range(2):
            with scene.reading("balanced"):
                until(members(2), "the second member", pause_seconds=0.5)
            until(members(1), "the first one alone", pause_seconds=0.5)
        scene.expect(VerdictKey.HEALTHY, steady=5)
    assert not scene.critical


def _members(sample: Sample | None) -> int:
    kafka = sample.kafka if sample else None
    return kafka.groups[0].members if isinstance(kafka, KafkaSample) else 0


# --- from here on slot, offset and server are at odds ---------------------------------------------


def test_connector_deleted(scene: Scene) -> None:
    scene.client.stop(scene.definition.connect.connector)
    scene.client.delete(scene.definition.connect.connector)
    verdict = scene.expect(VerdictKey.CONSUMER_DOWN)
    assert "knows no connector" in verdict.cause
    assert scene.outboxctl("connectors", "register").returncode == 0
    with scene.load():
        scene.expect(VerdictKey.HEALTHY)


def test_restored_from_an_older_copy(scene: Scene) -> None:
    """A snapshot of the whole data directory, slots included: the stored offset is in its future."""
    data = _instance(STACK).data("postgres")
    copy = data.with_name("postgres.copy")
    _stopped(scene, lambda: shutil.copytree(data, copy, symlinks=True))
    _own(data, copy)
    with scene.load():
        scene.expect(VerdictKey.HEALTHY)
    scene.client.stop(scene.definition.connect.connector)

    def restore() -> None:
        shutil.rmtree(data)
        copy.rename(data)

    _stopped(scene, restore)
    verdict = scene.expect(VerdictKey.OFFSET_AHEAD_OF_SLOT)
    assert "restored" in verdict.cause


def _stopped(scene: Scene, change: Callable[[], object]) -> None:
    run(STACK, "stop", "postgres")
    change()
    run(STACK, "start", "postgres")


def _own(like: Path, tree: Path) -> None:
    """Give a copy the owners and modes of the original; a copy made by root belongs to root."""
    owner = like.stat()
    for path in [tree, *tree.rglob("*")]:
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    tree.chmod(0o700)


def test_slot_made_anew_behind_a_stored_offset(scene: Scene) -> None:
    scene.history = History()
    postgres = scene.definition.postgres
    name = scene.definition.connect.connector
    scene.client.stop(name)
    with scene.connect() as conn:
        conn.execute("SELECT pg_drop_replication_slot(%s)", (postgres.slot,))
        verdict = scene.expect(VerdictKey.SLOT_MISSING)
        assert "outboxctl recover" in verdict.next_step
        # Back in the present: write beyond the stored offset, and make the slot there.
        offset = scene.client.offsets(name)
        assert offset is not None
        assert offset.resume_at is not None
        conn.execute("CREATE TABLE IF NOT EXISTS elsewhere (x text)")
        while True:
            row = conn.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn").fetchone()
            assert row is not None
            if row[0] > offset.resume_at:
                break
            conn.execute("SELECT pg_switch_wal()")
            conn.execute("INSERT INTO elsewhere VALUES ('x')")
        conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (postgres.slot,))
        scene.expect(VerdictKey.OFFSET_BEHIND_SLOT)


def test_the_time_that_is_left_comes_true(scene: Scene) -> None:
    """Connect stopped under load, a cap set: the end comes where `status` said, `earliest` not later."""
    with applied(scene.stack, "ahead", scene.file.parent) as ahead, ahead.load():
        ahead.act = scene.act
        ahead.expect(VerdictKey.HEALTHY)
        scene.stack.stop("connect")
        with ahead.connect() as conn, ahead.setting(**wal_forecasts.SETTINGS):
            ahead.history = History()
            began = wal_forecasts.write(conn, 1)
            with ThreadPoolExecutor(1) as aside:
                asked = aside.submit(ahead.outboxctl, "--json", "status", "--no-history")
                while not asked.done():
                    wal_forecasts.write(conn, 1)
                    time.sleep(0.5)
            printed = json.loads(asked.result().stdout)
            while True:
                written = wal_forecasts.write(conn, 2)
                verdict = ahead.look()
                if verdict.key is VerdictKey.SLOT_LOST:
                    break
                assert written - began < 512 * MIB, "the slot was never lost"
                wal_forecasts.pause(verdict)
    left, rate = printed["slot"]["seconds_left"], printed["server"]["wal_bytes_per_second"]
    seen_from = lsn.parse(printed["server"]["wal_position"])
    assert left["end"] == "invalidation"
    Foretold(seen_from, *(seen_from + rate * left[bound] for bound in ("earliest", "expected"))).check(
        began, written
    )
