"""claim() inside what people already run: a FastStream subscriber, an aiokafka loop, a Flask webhook."""

from __future__ import annotations

import asyncio
import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import flask
import psycopg
import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord
from faststream import AckPolicy
from faststream.kafka import KafkaBroker, KafkaMessage
from uuid_utils.compat import uuid7

from fix_consumer import Bench
from outbox_consumers import claim, claim_async
from waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack

EFFECT = b"INSERT INTO effect (event_id, consumer, key, n) VALUES (%s, 'billing', %s, %s)"


def send_each_twice(bench: Bench, events: int) -> None:
    for n in range(events):
        event_id = bench.send({"n": n}, key=str(n % 5))
        bench.send({"n": n}, key=str(n % 5), id=event_id)
    bench.flush()


def test_a_faststream_subscriber_that_fails_after_its_commit_repeats_nothing(bench: Bench) -> None:
    broker = KafkaBroker(bench.server.kafka, logger=None)
    failures: list[UUID] = []

    @broker.subscriber(
        bench.topic,
        group_id=bench.topic,
        auto_offset_reset="earliest",
        ack_policy=AckPolicy.NACK_ON_ERROR,  # FastStream's default acknowledges first, and so loses
    )
    async def placed(data: dict[str, int], message: KafkaMessage) -> None:
        event_id = UUID(str(message.headers["id"]))
        record = message.raw_message
        assert isinstance(record, ConsumerRecord)
        async with await psycopg.AsyncConnection.connect(bench.dsn) as conn:
            if await claim_async(conn, "billing", [event_id]):
                await conn.execute(EFFECT, (event_id, record.key.decode(), data["n"]))
        if data["n"] % 10 == 3 and event_id not in failures:
            failures.append(event_id)
            raise RuntimeError("committed, and never acknowledged")

    async def run() -> None:
        async with broker:
            await broker.start()
            await asyncio.to_thread(until, lambda: len(bench.effects()) >= 30 and len(failures) == 3)

    send_each_twice(bench, 30)
    asyncio.run(run())
    bench.applied_once()


def test_an_aiokafka_loop_that_dies_before_its_offsets_repeats_nothing(bench: Bench) -> None:
    async def apply(conn: psycopg.AsyncConnection[Any], records: list[ConsumerRecord]) -> None:
        ids = [UUID(dict(record.headers)["id"].decode()) for record in records]
        async with conn.transaction():
            fresh = await claim_async(conn, "billing", ids)
            for event_id, record in zip(ids, records, strict=True):
                if event_id in fresh:
                    fresh.discard(event_id)  # a batch may hold it twice
                    values = (event_id, record.key.decode(), json.loads(record.value)["n"])
                    await conn.execute(EFFECT, values)

    async def run(wanted: int, commits: bool) -> int:
        """Handle so many records; a loop that does not commit its offsets has died before it could."""
        consumer = AIOKafkaConsumer(
            bench.topic,
            bootstrap_servers=bench.server.kafka,
            group_id=bench.topic,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        seen = 0
        try:
            async with await psycopg.AsyncConnection.connect(bench.dsn, autocommit=True) as conn:
                while seen < wanted:
                    for records in (await consumer.getmany(timeout_ms=500, max_records=20)).values():
                        await apply(conn, records)
                        seen += len(records)
                    if commits:
                        await consumer.commit()
        finally:
            await consumer.stop()
        return seen

    send_each_twice(bench, 50)
    asyncio.run(asyncio.wait_for(run(60, commits=False), PATIENCE_SECONDS))
    asyncio.run(asyncio.wait_for(run(100, commits=True), PATIENCE_SECONDS))
    bench.applied_once()
    bench.applied_in_order()


def test_a_flask_webhook_called_again_and_at_once_works_once(bench: Bench) -> None:
    app = flask.Flask("webhook")

    @app.post("/deliveries")
    def delivered() -> tuple[str, int]:
        delivery = UUID(flask.request.headers["X-Delivery"])
        with psycopg.connect(bench.dsn) as conn:
            if not claim(conn, "billing", [delivery]):
                return "seen before", 200
            conn.execute(EFFECT, (delivery, "webhook", flask.request.get_json()["n"]))
        return "done", 201

    def call(delivery: tuple[int, UUID]) -> int:
        n, delivery_id = delivery
        answer = app.test_client().post(
            "/deliveries", json={"n": n}, headers={"X-Delivery": str(delivery_id)}
        )
        return answer.status_code

    bench.sent.extend(uuid7() for _ in range(20))
    deliveries = list(enumerate(bench.sent)) * 4
    random.Random(1).shuffle(deliveries)
    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(call, deliveries))
    assert (answers.count(201), answers.count(200)) == (20, 60)
    bench.applied_once()
