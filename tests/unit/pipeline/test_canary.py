"""What a canary that did not arrive says: the first station of the way that explains it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from outbox_connectors import loading
from outbox_pipeline.connect.canary import PathState, stopped_at
from outbox_pipeline.connect.client import ConnectorStatus, SourceOffset, TaskStatus
from outbox_pipeline.servers.slots import LiveSlot

DEFINITION = loading.load(Path(__file__).parents[3] / "connectors" / "outbox.yaml", {})
POSITION = 0x16B3748
SLOT = LiveSlot(
    plugin="pgoutput",
    kind="logical",
    database="shop",
    temporary=False,
    active=True,
    active_pid=1,
    active_user="shop_cdc",
    active_application="Debezium Streaming",
    wal_status="reserved",
    restart_lsn="0/16B3700",
    confirmed_flush_lsn="0/16B3740",
    safe_wal_size=None,
    conflicting=False,
    invalidation_reason=None,
    failover=True,
    inactive_since=None,
)
OFFSET = SourceOffset("shop", POSITION, POSITION, POSITION, "INSERT", False, {})
RUNNING = ConnectorStatus("shop", "RUNNING", "w:8083", (TaskStatus(0, "RUNNING", "w:8083"),))
FAILED_TASK = TaskStatus(0, "FAILED", "w:8083", "org.apache.kafka.ConnectException: no publication\n\tat x")
HEALTHY = PathState(slot=SLOT, connect_problem="", connector=RUNNING, topic_exists=True, log_end=POSITION + 8)


@pytest.mark.parametrize(
    ("seen", "problem", "remedy"),
    [
        (replace(HEALTHY, slot=None), "slot shop_outbox does not exist", "outboxctl apply"),
        (replace(HEALTHY, slot=None, offset=OFFSET), "slot shop_outbox does not exist", "outboxctl recover"),
        (replace(HEALTHY, slot=replace(SLOT, wal_status="lost")), "slot shop_outbox is lost", "recover"),
        (
            replace(HEALTHY, connect_problem="Connection refused", connector=None),
            "Kafka Connect cannot be asked: Connection refused",
            "connect.url",
        ),
        (replace(HEALTHY, connector=None), "does not exist", "outboxctl apply"),
        (
            replace(HEALTHY, connector=replace(RUNNING, tasks=(FAILED_TASK,))),
            "task 0 of connector shop-outbox has FAILED: ConnectException: no publication",
            "restart --failed",
        ),
        (replace(HEALTHY, connector=replace(RUNNING, state="PAUSED", tasks=())), "is PAUSED", "status"),
        (replace(HEALTHY, slot=replace(SLOT, active=False)), "nobody reads slot shop_outbox", "worker's log"),
        (
            replace(HEALTHY, slot=replace(SLOT, confirmed_flush_lsn="0/16B3800")),
            "Debezium has read past 0/16B3748 without delivering it",
            "message.prefix.include.list",
        ),
        (replace(HEALTHY, topic_exists=False), "topic shop.message does not exist", "create the topic"),
        (HEALTHY, "confirmed up to 0/16B3740, not yet to 0/16B3748", "backlog"),
        (replace(HEALTHY, slot=replace(SLOT, confirmed_flush_lsn=None)), "confirmed up to 0/0", "backlog"),
    ],
)
def test_the_first_station_that_explains_it_is_named(seen: PathState, problem: str, remedy: str) -> None:
    said, advice = stopped_at(seen, DEFINITION, POSITION)
    assert problem in said.replace(DEFINITION.connect.connector, "shop-outbox")
    assert remedy in advice
