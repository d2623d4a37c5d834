"""What the relay refuses to begin, each with one line and its exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from asking import administrator
from fix_relay import NewRelayed, Relayed
from outbox_connectors.errors import ExitCode

pytestmark = pytest.mark.stack


def refusal(relayed: Relayed, *arguments: str) -> tuple[int, str]:
    done = relayed.outboxctl("relay", *arguments)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.strip().splitlines()[-1]


def test_an_outbox_that_is_not_set_up(relayed: Relayed) -> None:
    with relayed.connect() as conn:
        conn.execute("DROP TABLE outbox_relay")
    code, line = refusal(relayed, "--until-empty")
    assert code == ExitCode.FAILED
    assert "run outboxctl relay --init" in line


def test_a_live_connector(relayed: Relayed) -> None:
    slot = relayed.definition.postgres.slot
    with relayed.connect() as conn:
        conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        code, line = refusal(relayed, "--until-empty")
    assert code == ExitCode.REFUSED
    assert "switch --to relay" in line


def test_another_pipeline_on_the_same_outbox(relayed: Relayed) -> None:
    relayed.path.write_text(relayed.path.read_text().replace(relayed.definition.pipeline, "other"))
    document = json.loads(relayed.path.read_text())
    document["postgres"]["admin"] = relayed.site.database.conninfo
    relayed.path.write_text(json.dumps(document))
    code, line = refusal(relayed, "--until-empty")
    assert code == ExitCode.REFUSED
    assert "an outbox of its own" in line


def test_another_number_of_shards(relayed: Relayed) -> None:
    code, line = refusal(relayed, "--init", "--shards", "16")
    assert code == ExitCode.FAILED
    assert "set up with 4 shards" in line
    with relayed.connect() as conn:
        conn.execute("UPDATE outbox_relay SET shards = 16")
    code, line = refusal(relayed, "--until-empty")
    assert code == ExitCode.FAILED
    assert "does not follow 16 shards" in line


def test_archive_without_a_history(relayed: Relayed) -> None:
    code, line = refusal(relayed, "--until-empty", "--mode", "archive")
    assert code == ExitCode.FAILED
    assert "--archive" in line


def test_no_kafka(relayed: Relayed) -> None:
    text = relayed.path.read_text()
    relayed.path.write_text(text.replace(relayed.site.database.server.kafka, "127.0.0.1:1"))
    code, line = refusal(relayed, "--until-empty")
    assert code == ExitCode.UNREACHABLE
    assert "Kafka" in line


@contextmanager
def denied(relayed: Relayed, kind: ResourceType, name: str, what: AclOperation) -> Iterator[None]:
    """Let the broker refuse one thing to everybody."""
    admin = administrator(relayed.definition.kafka.client)
    pattern = ResourcePatternType.PREFIXED if name.endswith(".") else ResourcePatternType.LITERAL
    rules = [
        AclBinding(kind, name, pattern, "User:*", "*", AclOperation.ALL, AclPermissionType.ALLOW),
        AclBinding(kind, name, pattern, "User:*", "*", what, AclPermissionType.DENY),
    ]
    for made in admin.create_acls(rules).values():
        made.result()
    try:
        yield
    finally:
        every = AclBindingFilter(kind, name, pattern, "User:*", "*", AclOperation.ANY, AclPermissionType.ANY)
        for gone in admin.delete_acls([every]).values():
            gone.result()


def test_rights_that_the_broker_refuses(relayed: Relayed) -> None:
    relayed.write(20)
    own = f"{relayed.definition.pipeline}.relay"
    with denied(relayed, ResourceType.TRANSACTIONAL_ID, f"{own}.", AclOperation.WRITE):
        done = relayed.outboxctl("relay", "--until-empty")
    assert done.returncode == ExitCode.UNREACHABLE
    assert "grant WRITE and DESCRIBE on its transactional ids" in done.stderr
    for what in (AclOperation.READ, AclOperation.WRITE):
        with denied(relayed, ResourceType.TOPIC, own, what):
            code, line = refusal(relayed, "--until-empty")
        assert code == ExitCode.UNREACHABLE
        assert f"topic {own}: Kafka refuses {what.name}; grant it" in line
    assert relayed.left() == 20


def test_a_topic_that_may_not_be_written_holds_up_no_other(relayed: Relayed) -> None:
    relayed.write(20)
    relayed.write(20, aggregate_type="payment")
    with denied(relayed, ResourceType.TOPIC, relayed.definition.kafka.topic_of("order"), AclOperation.WRITE):
        code, line = refusal(relayed, "--until-empty")
        assert code == ExitCode.FAILED
        assert "rows of order are left" in line
        assert relayed.left() == 20
    relayed.until_empty()
    assert relayed.ledger().clean


def test_an_outbox_with_other_columns(relayed: Relayed) -> None:
    with relayed.connect() as conn:
        conn.execute("ALTER TABLE outbox RENAME event_type TO kind")
    code, line = refusal(relayed, "--init")
    assert code == ExitCode.FAILED
    assert "column event_type is missing" in line
    code, line = refusal(relayed, "--until-empty")
    assert code == ExitCode.FAILED
    assert "column event_type is missing" in line


def test_init_twice_and_its_plan(new_relayed: NewRelayed) -> None:
    relayed = new_relayed(notify=False)
    assert relayed.outboxctl("relay", "--init", "--no-notify", "--dry-run").returncode == ExitCode.OK
    done = relayed.outboxctl("--json", "relay", "--init", "--archive", "--dry-run")
    assert done.returncode == ExitCode.DIFFERENT
    changes = {c["field"] for o in json.loads(done.stdout)["objects"] for c in o["changes"]}
    assert changes == {"wake-up function", "wake-up trigger", "history"}
    assert relayed.outboxctl("relay", "--init", "--archive").returncode == ExitCode.OK
    assert relayed.outboxctl("relay", "--init", "--archive", "--dry-run").returncode == ExitCode.OK


def test_a_program_that_workers_cannot_import(relayed: Relayed) -> None:
    """Each worker imports the caller's main module: without a guard it would start workers of its own."""
    program = relayed.path.with_name("embedding.py")
    program.write_text(
        "import os\n"
        "from pathlib import Path\n"
        "from threading import Event\n"
        "from outbox_connectors import loading\n"
        "from outbox_pipeline import relay\n"
        f"definition = loading.load(Path({str(relayed.path)!r}), os.environ)\n"
        "settings = relay.RelaySettings(workers=2, until_empty=True)\n"
        "relay.run(definition, settings, say=print, stop=Event())\n"
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "a worker process cannot start" in done.stderr.strip().splitlines()[-1]
