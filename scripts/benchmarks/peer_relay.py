"""Relay a backlog with faststream-outbox and its Kafka publisher, in an environment of its own.

Called as `python peer_relay.py SQLALCHEMY_URL BOOTSTRAP TOPIC EVENTS`; prints events per second. It
keeps no order per aggregate, so it gets the number of workers and the batch size that were fastest here.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
from typing import Any

# Not among our dependencies: only this program's own environment has them.
alchemy: Any = importlib.import_module("sqlalchemy")
alchemy_async: Any = importlib.import_module("sqlalchemy.ext.asyncio")
confluent: Any = importlib.import_module("faststream.confluent")
peer: Any = importlib.import_module("faststream_outbox")

QUEUE = "orders"
FILL = """
INSERT INTO peer_outbox (queue, payload, headers)
SELECT 'orders', convert_to('{"order": ' || n || ', "total": "19.90", "lines": [{"sku": "A-1"}]}', 'UTF8'),
    '{"content-type": "application/json"}'
FROM generate_series(1, :events) AS n
"""


async def relay(url: str, bootstrap: str, topic: str, events: int) -> float:
    """Fill the table, then relay until it is empty. Returns events per second."""
    engine = alchemy_async.create_async_engine(url, pool_size=30)
    metadata = alchemy.MetaData()
    table = peer.make_outbox_table(metadata, table_name="peer_outbox")
    async with engine.begin() as conn:
        await conn.run_sync(metadata.drop_all)
        await conn.run_sync(metadata.create_all)
        await conn.execute(alchemy.text(FILL), {"events": events})
    kafka = confluent.KafkaBroker(bootstrap, logger=None)
    outbox = peer.OutboxBroker(engine, outbox_table=table, logger=None)

    @kafka.publisher(topic)  # type: ignore[untyped-decorator]  # there are no types in our environment
    @outbox.subscriber(  # type: ignore[untyped-decorator]
        QUEUE,
        max_workers=20,
        fetch_batch_size=500,
        min_fetch_interval=0.01,
        terminal_flush_batch_size=100,
    )
    async def handle(body: Any) -> Any:
        return body

    await kafka.start()
    await outbox.start()
    began = time.monotonic()
    left = events
    while left:
        await asyncio.sleep(0.1)
        async with engine.connect() as conn:
            left = (await conn.execute(alchemy.text("SELECT count(*) FROM peer_outbox"))).scalar_one()
    took = time.monotonic() - began
    await outbox.stop()
    await kafka.stop()
    await engine.dispose()
    return events / took


if __name__ == "__main__":
    print(asyncio.run(relay(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))))
