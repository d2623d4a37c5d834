"""A working connector that others registered: looking at it changes nothing, and no advice breaks it.

The table and the connector of a service that keeps bytes in a bytea, with columns and headers of its own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition

from asking import administrator
from fix_stack import Database, Stack
from loss_lab import definition_of
from outbox_pipeline.connect.client import ConnectClient
from waiting import PATIENCE_SECONDS, until

pytestmark = [pytest.mark.stack, pytest.mark.slow]

PROGRAM = Path(sys.executable).with_name("outboxctl")
BYTES = b"\x00\x01\xfeAvro"
TABLE = """
CREATE TABLE crm_outboxrecord (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(), topic varchar(255) NOT NULL,
  message_key varchar(255) NOT NULL, event_type varchar(255) NOT NULL, payload bytea NOT NULL
)"""
DEFINITION = """\
pipeline: {name}
postgres:
  admin: "{conninfo}"
  connector: {{host: "{host}", port: {port}, database: {database}, user: {name}_cdc, password: "${{env:X}}"}}
  slot: {name}
  publication: {name}
outbox: {{table: public.crm_outboxrecord, payload: bytea}}
kafka:
  client: {{bootstrap.servers: "{kafka}"}}
connect: {{url: "{connect}", connector: {name}}}
watch: {{ticker: 1s}}
"""


@dataclass(slots=True)
class Foreign:
    name: str
    file: Path
    conn: psycopg.Connection
    client: ConnectClient
    kafka: dict[str, str]
    written: int = 0

    def outboxctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environ = {"PATH": os.environ["PATH"], "HOME": str(self.file.parent), "NO_COLOR": "1"}
        command = [str(PROGRAM), "-f", str(self.file), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environ, timeout=PATIENCE_SECONDS
        )
        assert "Traceback" not in done.stdout + done.stderr
        return done

    def write(self) -> None:
        self.conn.execute(
            "INSERT INTO crm_outboxrecord (topic, message_key, event_type, payload)"
            " VALUES (%s, '7', 'PersonChanged', %s)",
            (f"{self.name}.person", BYTES),
        )
        self.written += 1

    def flows(self) -> None:
        """Write an event and wait until all that were written are there, byte for byte."""
        self.write()
        assert until(lambda: len(self.values()) >= self.written)
        assert set(self.values()) == {BYTES}

    def values(self) -> list[bytes]:
        settings = {**self.kafka, "group.id": f"{self.name}-reader", "auto.offset.reset": "earliest"}
        consumer = Consumer(settings)
        try:
            topic = f"{self.name}.person"
            if topic not in consumer.list_topics(timeout=PATIENCE_SECONDS).topics:
                return []
            consumer.assign([TopicPartition(topic, 0, 0)])
            found = []
            while (message := consumer.poll(2.0)) is not None:
                assert message.error() is None
                value = message.value()
                assert isinstance(value, bytes)
                found.append(value)
            return found
        finally:
            consumer.close()


@pytest.fixture
def foreign(stack: Stack, database: Database, pipeline_name: str, tmp_path: Path) -> Iterator[Foreign]:
    name, environ = pipeline_name, stack.environ
    definition = definition_of(name, database)
    file = tmp_path / "outbox.yaml"
    file.write_text(
        DEFINITION.format(
            name=name,
            conninfo=database.conninfo,
            host=environ["PGHOST"],
            port=environ["PGPORT"],
            database=database.name,
            kafka=environ["OUTBOX_KAFKA_BOOTSTRAP"],
            connect=environ["OUTBOX_CONNECT_URL"],
        )
    )
    with database.connect() as conn, ConnectClient(definition.connect) as client:
        conn.execute(TABLE)
        made = Foreign(name, file, conn, client, dict(definition.kafka.client))
        client.put_config(name, config(stack, database, name))
        try:
            made.flows()
            yield made
        finally:
            client.delete(name)
            until(
                lambda: (
                    conn.execute(
                        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s AND active", (name,)
                    ).fetchone()
                    == (0,)
                )
            )
            conn.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
                (name,),
            )
            admin = administrator(made.kafka)
            for future in admin.delete_topics([f"{name}.person"], operation_timeout=10).values():
                future.exception(timeout=15)


def config(stack: Stack, database: Database, name: str) -> dict[str, str]:
    router = "transforms.outbox."
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "topic.prefix": f"{name}.crm",
        "database.hostname": stack.environ["PGHOST"],
        "database.port": stack.environ["PGPORT"],
        "database.user": stack.environ["PGUSER"],
        "database.password": stack.environ["PGPASSWORD"],
        "database.dbname": database.name,
        "slot.name": name,
        "publication.name": name,
        "publication.autocreate.mode": "filtered",
        "table.include.list": "public.crm_outboxrecord",
        "transforms": "outbox",
        f"{router}type": "io.debezium.transforms.outbox.EventRouter",
        f"{router}table.field.event.key": "message_key",
        f"{router}route.by.field": "topic",
        f"{router}route.topic.replacement": "${routedByValue}",
        f"{router}table.fields.additional.placement": "id:header:ce_id,event_type:header:ce_type",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "1",
    }


def test_looking_at_it_ends_no_session_and_writes_nothing(foreign: Foreign) -> None:
    status = foreign.outboxctl("--json", "status")
    found = json.loads(status.stdout)
    assert "slot_taken" not in {found["verdict"], *(finding["key"] for finding in found["findings"])}
    assert "terminate" not in status.stdout
    assert found["tick"]["allowed"] is False
    assert found["connector"]["made_by_apply"] is False
    doctor = foreign.outboxctl("doctor").stdout
    assert "terminate" not in doctor
    assert "run outboxctl watch (" not in doctor
    foreign.flows()


@pytest.mark.parametrize("options", [[], ["--observe"], ["--no-observe"]], ids=str)
def test_a_watch_sends_it_no_message(foreign: Foreign, options: list[str]) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(foreign.file.parent), "NO_COLOR": "1"}
    command = [str(PROGRAM), "-f", str(foreign.file), "watch", "--interval", "1", *options]
    with foreign.conn.cursor() as cursor:
        cursor.execute("CREATE EXTENSION pg_walinspect")
        before = cursor.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ
    )
    try:
        time.sleep(8)  # several ticks' time, in which nothing may happen
    finally:
        child.send_signal(signal.SIGTERM)
        out, _ = child.communicate(timeout=PATIENCE_SECONDS)
    assert child.returncode == 0, out
    assert ("observing only" if options == ["--observe"] else "no tick is sent: ") in out
    foreign.flows()
    messages = foreign.conn.execute(
        "SELECT count(*) FROM pg_get_wal_records_info(%s, pg_current_wal_flush_lsn())"
        " WHERE resource_manager = 'LogicalMessage'",
        before,
    ).fetchone()
    assert messages == (0,)


def test_its_advice_followed_to_the_letter_leaves_every_byte(foreign: Foreign, tmp_path: Path) -> None:
    live = foreign.client.config(foreign.name)
    assert live is not None
    for converter in (live["value.converter"], "org.apache.kafka.connect.storage.StringConverter"):
        file = tmp_path / "connector.json"
        file.write_text(json.dumps({"name": foreign.name, "config": {**live, "value.converter": converter}}))
        said = foreign.outboxctl("--json", "connectors", "validate", "--file", str(file))
        findings = json.loads(said.stdout)["findings"]
        changes: dict[str, str] = {}
        for finding in findings:
            if finding["remedy"].startswith("set "):
                changes |= dict(re.findall(r"(?:set|and) ([\w.]+)=(\S+?)(?=,|;|\s|$)", finding["remedy"]))
        foreign.client.put_config(foreign.name, {**live, "value.converter": converter, **changes})
        until(
            lambda: (
                (s := foreign.client.status(foreign.name)) is not None
                and [task.state for task in s.tasks] == ["RUNNING"]
            )
        )
        foreign.flows()
