"""What the relay refuses to begin, each with one line and its exit code."""

from __future__ import annotations

import json

import pytest

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
