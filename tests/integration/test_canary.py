"""A canary through the real road, where it stops, and what `send` and `tail` show of the same road."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asking import administrator
from conformance.roads import TEMPLATE, Road, road
from fix_stack import Database, Stack
from outbox_pipeline.connect import canary
from outbox_pipeline.errors import Failed
from outbox_pipeline.servers import logical_messages, lsn
from waiting import PATIENCE_SECONDS, until

pytestmark = [pytest.mark.stack, pytest.mark.slow]


@pytest.fixture
def pipeline(stack: Stack, database: Database, pipeline_name: str) -> Iterator[Road]:
    with road(stack, database, pipeline_name) as made:
        yield made


def stopped(made: Road, timeout_seconds: float = 2.0) -> str:
    """Say why a canary did not arrive."""
    with pytest.raises(Failed) as raised:
        canary.travel(made.conn, made.definition, timeout_seconds=timeout_seconds)
    return str(raised.value)


def until_stopped_by(made: Road, cause: str) -> str:
    """Send canaries until one stops for this reason: Connect acts some time after it was told."""
    said = "all canaries arrived"
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        try:
            canary.travel(made.conn, made.definition, timeout_seconds=2.0)
        except Failed as error:
            said = str(error)
            if cause in said:
                return said
    raise AssertionError(said)


def test_canaries_travel_one_after_the_other_once_the_road_is_open(pipeline: Road) -> None:
    travels = [
        canary.travel(pipeline.conn, pipeline.definition, timeout_seconds=PATIENCE_SECONDS) for _ in range(5)
    ]
    assert all(travel.seconds > 0 for travel in travels)
    positions = [lsn.parse(travel.lsn) for travel in travels]
    assert positions == sorted(set(positions))


def test_a_tick_is_not_taken_for_a_canary(pipeline: Road, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is another process's canary: only the position decides."""
    emit = logical_messages.emit

    def misplaced(*arguments: Any, **named: Any) -> int:
        return emit(*arguments, **named) + 8

    monkeypatch.setattr(logical_messages, "emit", misplaced)
    assert "no canary arrived" in stopped(pipeline)


def test_a_canary_leaves_no_group_behind(pipeline: Road) -> None:
    canary.travel(pipeline.conn, pipeline.definition, timeout_seconds=PATIENCE_SECONDS)
    admin = administrator(pipeline.definition.kafka.client)
    groups = admin.list_consumer_groups().result().valid
    assert [group.group_id for group in groups if group.group_id.startswith("outboxctl")] == []


def test_a_canary_that_stops_says_where(pipeline: Road) -> None:
    """One road, broken further and further."""
    name, client = pipeline.definition.connect.connector, pipeline.client

    away = replace(pipeline.definition.connect, url="http://127.0.0.1:1")
    client.pause(name)
    client.pause(name)
    nowhere = replace(pipeline, definition=replace(pipeline.definition, connect=away))
    assert "Kafka Connect cannot be asked: " in stopped(nowhere)
    assert f"connector {name} is PAUSED; see outboxctl connectors status" in stopped(pipeline)
    client.resume(name)
    canary.travel(pipeline.conn, pipeline.definition, timeout_seconds=PATIENCE_SECONDS)

    config = client.config(name)
    assert config is not None
    client.put_config(name, {**config, "publication.name": "nowhere"})
    said = until_stopped_by(pipeline, "has FAILED")
    assert "please create one and restart the connector" in said
    assert "outboxctl connectors restart --failed" in said
    assert "\n" not in said

    client.delete(name)
    assert f"connector {name} does not exist; run outboxctl apply" in stopped(pipeline)

    slot = pipeline.definition.postgres.slot
    inactive = "SELECT NOT active FROM pg_replication_slots WHERE slot_name = %s"
    until(lambda: pipeline.conn.execute(inactive, (slot,)).fetchone() == (True,))
    pipeline.conn.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    said = stopped(pipeline)
    assert f"slot {slot} does not exist, " in said
    assert "; outboxctl apply" in said
    client.put_config(name, config)  # so that the road can be taken away as it was made


class Control:
    """outboxctl on one road, as a process."""

    def __init__(self, made: Road, stack: Stack, database: Database, folder: Path) -> None:
        self.file = folder / "outbox.yaml"
        environ = stack.environ
        self.file.write_text(
            TEMPLATE.format(
                name=made.definition.pipeline,
                host=environ["OUTBOX_CDC_HOST"],
                port=environ["OUTBOX_CDC_PORT"],
                database=database.name,
                kafka=stack.kafka,
                connect=stack.connect_url,
            )
        )
        self.environ = {**os.environ, **environ}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        code = "from outbox_pipeline.cli import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", code, "-f", str(self.file), *arguments],
            env=self.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, code: int = 0, given: str = "") -> str:
        child = self.start(*arguments)
        out, err = child.communicate(given, timeout=PATIENCE_SECONDS)
        assert child.returncode == code, (out, err)
        return out if code == 0 else err


def test_send_and_tail(pipeline: Road, stack: Stack, database: Database, tmp_path: Path) -> None:
    control = Control(pipeline, stack, database, tmp_path)
    live = control.start("--json", "tail", "--max", "3", "--timeout", "60")
    assert live.stderr is not None
    assert live.stderr.readline().startswith("no topic matches events")

    first = control.run("send", "order", "42", "OrderPlaced", '{"total": 99, "note": "\\u001b[31m"}').strip()
    second = json.loads(control.run("--json", "send", "order", "42", "OrderForgotten", "--null"))["id"]
    third = control.run(
        *("send", "payment", "7", "Paid", "-", "--headers", '{"tenant": "acme"}', "--correlation-id", "c-1"),
        given='{"paid": 12345678901234567890.123, "limit": 1e400}',
    ).strip()
    with database.connect() as conn:
        stored = conn.execute("SELECT payload::text FROM outbox WHERE id = %s", (third,)).fetchone()
    assert stored == (f'{{"paid": 12345678901234567890.123, "limit": 1{"0" * 400}}}',)

    out, _ = live.communicate(
        timeout=PATIENCE_SECONDS
    )  # a topic made after tail began is found and read from its start
    assert live.returncode == 0
    documents = [json.loads(line) for line in out.splitlines()]
    orders = [document for document in documents if document["key"] == "42"]  # order holds within a key
    assert [document["id"] for document in orders] == [first, second]
    assert [document["payload"] for document in orders] == [{"total": 99, "note": "\x1b[31m"}, None]
    assert {document["id"] for document in documents} == {first, second, third}

    lines = control.run("tail", "--from-beginning", "--max", "3", "--timeout", "60").splitlines()
    assert {line.split("  ")[4] for line in lines} == {first, second, third}
    assert "\x1b" not in "".join(lines)

    only = control.run(
        *["--json", "tail", "--from-beginning", "--aggregate", "payment", "--max", "1", "--timeout", "60"]
    )
    assert json.loads(only)["headers"] == {"tenant": "acme"}
    assert json.loads(only)["correlation_id"] == "c-1"

    assert "0 of 1 records arrived within 1 s" in control.run(
        *["tail", "--max", "1", "--timeout", "1"], code=1
    )
    assert f"an event with id {first} exists already" in control.run(
        "send", "order", "42", "OrderPlaced", "{}", "--id", first, code=1
    )


def test_tail_ends_cleanly_on_ctrl_c(
    pipeline: Road, stack: Stack, database: Database, tmp_path: Path
) -> None:
    control = Control(pipeline, stack, database, tmp_path)
    child = control.start("tail", "--topic", pipeline.definition.message_topic)
    assert child.stderr is not None
    assert child.stderr.readline().startswith(
        f"reading {pipeline.definition.message_topic}, new records only"
    )
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=PATIENCE_SECONDS) == ("", "")
    assert child.returncode == 0
