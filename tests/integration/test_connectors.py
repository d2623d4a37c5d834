"""`outboxctl connectors` against a real Connect: register, look, pause, stop, resume, restart, delete."""

from __future__ import annotations

import json
import shlex
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from fix_connector import Pipeline
from fix_stack import Stack
from waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack


def state_of(pipeline: Pipeline) -> str:
    status = pipeline.client.status(pipeline.connector)
    return status.state if status else "absent"


def test_the_life_of_a_connector(pipeline: Pipeline) -> None:
    name = pipeline.connector
    dry = pipeline.outboxctl("register", "--dry-run")
    assert dry.code == 0, dry.text
    assert f"{name}: would be created" in dry.out
    assert "  + topic.prefix = " in dry.out
    assert "  + database.password = ${env:OUTBOX_CDC_PASSWORD}" in dry.out
    assert state_of(pipeline) == "absent"

    created = pipeline.outboxctl("register", "--wait", "2")
    assert created.code == 0, created.text
    assert f"{name}: created" in created.out
    pipeline.wait_until_running()
    looked = pipeline.outboxctl("status")
    assert looked.code == 0, looked.text
    assert "task 0: RUNNING" in looked.out
    again = pipeline.outboxctl("register")
    assert (again.code, again.out) == (0, f"{name}: nothing to change\n")

    paused = pipeline.outboxctl("pause")
    assert paused.code == 0, paused.text
    assert state_of(pipeline) == "PAUSED"
    assert pipeline.outboxctl("status").code == 4
    assert pipeline.outboxctl("resume", "--wait", "0").code == 0
    pipeline.wait_until_running()

    stopped = pipeline.outboxctl("stop")
    assert "no task, the slot is free and keeps WAL" in stopped.out
    refused = pipeline.outboxctl("restart")
    assert refused.code == 1
    assert "is STOPPED: a restart does nothing" in refused.err
    assert pipeline.outboxctl("resume", "--wait", "1").code == 0
    pipeline.wait_until_running()
    assert pipeline.outboxctl("restart", "--wait", "1").code == 0
    pipeline.wait_until_running()
    nothing = pipeline.outboxctl("restart", "--failed", "--json")
    assert nothing.document["action"] == "none"

    unsure = pipeline.outboxctl("delete", typed="n\n")
    assert unsure.code == 1
    assert "slot" in unsure.err
    assert state_of(pipeline) == "RUNNING"
    deleted = pipeline.outboxctl("delete", "--yes")
    assert (deleted.code, deleted.out) == (0, f"{name}: deleted\n")
    assert state_of(pipeline) == "absent"
    slot = pipeline.definition.postgres.slot
    found = pipeline.conn.execute("SELECT slot_name FROM pg_replication_slots WHERE slot_name = %s", (slot,))
    assert found.fetchone() == (slot,)


def test_an_update_shows_the_fields_that_change(pipeline: Pipeline) -> None:
    pipeline.register()
    text = pipeline.file.read_text()
    changed = text.replace("connect:\n", "connect:\n  config: {poll.interval.ms: 20, max.batch.size: 4096}\n")
    pipeline.file.write_text(changed)
    dry = pipeline.outboxctl("register", "--dry-run", "--json")
    assert dry.code == 0, dry.text
    assert dry.document["action"] == "update"
    assert dry.document["changes"] == [
        {"field": "max.batch.size", "have": None, "want": "4096"},
        {"field": "poll.interval.ms", "have": "10", "want": "20"},
    ]
    assert (pipeline.client.config(pipeline.connector) or {})["poll.interval.ms"] == "10"
    updated = pipeline.outboxctl("register", "--wait", "0")
    assert "  ~ poll.interval.ms = 10 -> 20" in updated.out
    assert (pipeline.client.config(pipeline.connector) or {})["poll.interval.ms"] == "20"


@pytest.mark.parametrize("form", ["named", "bare"])
def test_a_plain_json_file_needs_no_definition(pipeline: Pipeline, tmp_path: Path, form: str) -> None:
    dry = pipeline.outboxctl("register", "--dry-run", "--json").document
    config = {change["field"]: change["want"] for change in dry["changes"]}
    config["tasks.max"] = 1  # a number, as people write it
    name = pipeline.connector
    document = {"name": name, "config": config} if form == "named" else config
    file = tmp_path / "connector.json"
    file.write_text(json.dumps(document))
    arguments = [] if form == "named" else [name]
    ran = pipeline.outboxctl("register", *arguments, "--file", str(file), "--wait", "0", definition=False)
    assert ran.code == 0, ran.text
    pipeline.wait_until_running()
    assert pipeline.outboxctl("status", name, definition=False).code == 0
    assert name in pipeline.outboxctl("list", definition=False).out
    assert pipeline.outboxctl("stop", name, definition=False).code == 0


def test_connect_refuses_with_one_line_for_each_property(pipeline: Pipeline) -> None:
    text = pipeline.file.read_text()
    wrong = "connect:\n  config: {slot.name: Not-A-Slot, max.queue.size: 1, lsn.flush.mode: sometimes}\n"
    pipeline.file.write_text(text.replace("connect:\n", wrong))
    for verb in ("validate", "register"):
        ran = pipeline.outboxctl(verb)
        assert ran.code == 1, ran.text
        lines = [
            line.split(":")[0].strip()
            for line in ran.out.splitlines()
            if line.startswith("  ") and ": " in line
        ]
        assert {"slot.name", "max.queue.size", "lsn.flush.mode"} <= set(lines), ran.text
    assert state_of(pipeline) == "absent"
    errors = pipeline.outboxctl("validate", "--json").document["errors"]
    assert {"slot.name", "max.queue.size", "lsn.flush.mode"} <= {error["field"] for error in errors}


def test_a_wrong_password_is_reported_and_not_shown(pipeline: Pipeline, tmp_path: Path) -> None:
    dry = pipeline.outboxctl("register", "--dry-run", "--json").document
    config = {change["field"]: change["want"] for change in dry["changes"]}
    file = tmp_path / "connector.json"
    file.write_text(
        json.dumps({"name": pipeline.connector, "config": {**config, "database.password": "hunter2"}})
    )
    ran = pipeline.outboxctl("register", "--file", str(file))
    assert ran.code == 1
    assert "password authentication failed" in ran.text
    assert "  + database.password = ***" in ran.out
    assert "would be stored readable for all" in ran.err
    assert "hunter2" not in ran.text


def test_a_failed_task_shows_the_line_that_matters_and_is_restarted_alone(pipeline: Pipeline) -> None:
    publication = pipeline.definition.postgres.publication
    pipeline.conn.execute(f'DROP PUBLICATION "{publication}"'.encode())
    ran = pipeline.outboxctl("register", "--wait", str(int(PATIENCE_SECONDS)))  # it ends with the failure
    assert ran.code == 1, ran.text
    assert "Publication autocreation is disabled" in ran.out
    looked = pipeline.outboxctl("status", "--json")
    assert looked.code == 5
    assert "Publication autocreation is disabled" in looked.document["tasks"][0]["why"]
    pipeline.conn.execute(f'CREATE PUBLICATION "{publication}" FOR TABLE outbox'.encode())
    ran = pipeline.outboxctl("restart", "--failed", "--wait", "1")
    assert until(lambda: pipeline.outboxctl("status").code == 0), ran.text


def test_a_restart_is_refused_where_the_guard_cannot_look(pipeline: Pipeline) -> None:
    pipeline.register()
    blind = replace(pipeline, environ={**pipeline.environ, "PGPORT": "1"})
    ran = blind.outboxctl("restart")
    assert ran.code == 7, ran.text
    assert "cannot be compared: PostgreSQL at" in ran.err
    assert "restart --force" in ran.err
    ran = blind.outboxctl("restart", "--force", "--wait", "0")
    assert ran.code == 0, ran.text


def test_what_is_not_there_says_what_is(pipeline: Pipeline) -> None:
    for verb in (
        ["status"],
        ["pause"],
        ["stop"],
        ["resume"],
        ["restart"],
        ["delete", "--yes"],
        ["offsets", "show"],
    ):
        ran = pipeline.outboxctl(*verb, "nobody")
        assert ran.code == 1, (verb, ran.text)
        assert "there is no connector nobody" in ran.err, (verb, ran.text)
        assert "connectors there:" in ran.err


def test_every_command_speaks_json(pipeline: Pipeline) -> None:
    pipeline.register()
    assert pipeline.outboxctl("list", "--json").document[0]["name"]
    assert pipeline.outboxctl("status", "--json").document["state"] == "RUNNING"
    assert pipeline.outboxctl("validate", "--json").document["errors"] == []
    for verb in (
        ["pause"],
        ["resume", "--wait", "0"],
        ["restart", "--wait", "0"],
        ["stop"],
        ["delete", "--yes"],
    ):
        dry = pipeline.outboxctl(*verb, "--dry-run", "--json")
        assert dry.code == 0, dry.text
        assert (dry.document["action"], dry.document["dry_run"]) == (verb[0], True)
    assert state_of(pipeline) == "RUNNING"


def test_an_unreachable_connect_is_one_line_without_credentials(pipeline: Pipeline, stack: Stack) -> None:
    environ = dict(pipeline.environ, OUTBOX_CONNECT_URL="http://ann:hunter2@127.0.0.1:1")
    pipeline.environ = environ
    ran = pipeline.outboxctl("list", definition=False)
    assert ran.code == 6
    assert "Kafka Connect at http://127.0.0.1:1: does not answer: Connection refused" in ran.err
    assert "hunter2" not in ran.text
    ran = pipeline.outboxctl("--url", "http://ann:hunter2@127.0.0.1:1", "list")
    assert ran.code == 2
    assert "hunter2" not in ran.text


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read"),
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"connector.class": "x"}', "the connector has no name"),
        ('{"name": "x", "config": {}}', "connector.class is missing"),
        ('{"name": "x", "config": {"connector.class": "x", "a": []}}', "a is neither text"),
    ],
)
def test_a_file_that_is_no_connector(
    pipeline: Pipeline, tmp_path: Path, content: str | None, problem: str
) -> None:
    file = tmp_path / "connector.json"
    if content is not None:
        file.write_text(content)
    ran = pipeline.outboxctl("register", "--file", str(file))
    assert ran.code == 2, ran.text
    assert problem in ran.err
    assert str(file) in ran.err


def test_a_class_that_connect_does_not_have(pipeline: Pipeline, tmp_path: Path) -> None:
    file = tmp_path / "connector.json"
    file.write_text('{"name": "x", "config": {"connector.class": "io.example.Nothing"}}')
    ran = pipeline.outboxctl("register", "--file", str(file))
    assert ran.code == 1, ran.text
    assert "connector.class: " in ran.out
    assert "io.example.Nothing" in ran.out


def test_a_connector_that_works_is_not_replaced_by_what_may_not(pipeline: Pipeline, tmp_path: Path) -> None:
    """The table is blocked: nothing changes without --force; with it the old one can be put back."""
    text = pipeline.file.read_text()
    pipeline.register()
    pipeline.file.write_text(text.replace("connect:\n", "connect:\n  config: {poll.interval.ms: 20}\n"))
    before = pipeline.client.config(pipeline.connector)
    pipeline.conn.execute("ALTER TABLE outbox ALTER COLUMN traceparent TYPE varchar(9)")
    refused = pipeline.outboxctl("register")
    assert refused.code == 7, refused.text
    assert "works, and the new configuration may not: plan: table" in refused.err
    assert pipeline.client.config(pipeline.connector) == before
    assert pipeline.outboxctl("register", "--dry-run").code == 7
    forced = pipeline.outboxctl("register", "--force", "--wait", "0", "--backup-dir", str(tmp_path))
    assert forced.code == 0, forced.text
    assert (pipeline.client.config(pipeline.connector) or {})["poll.interval.ms"] == "20"
    (kept,) = tmp_path.glob(f"{pipeline.connector}.*.json")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert str(kept) in forced.err
    command = forced.err.partition("to put it back: ")[2].splitlines()[0]
    program, group, *arguments = shlex.split(command)
    assert (program, group) == ("outboxctl", "connectors")
    back = pipeline.outboxctl(*arguments, "--wait", "0", "--backup-dir", str(tmp_path))
    assert back.code == 0, back.text
    assert pipeline.client.config(pipeline.connector) == before


def test_a_connector_of_another_form_is_replaced_only_by_force(pipeline: Pipeline, tmp_path: Path) -> None:
    """Somebody's own connector with a literal secret: kept in the file, shown nowhere."""
    pipeline.register()
    live = pipeline.client.config(pipeline.connector) or {}
    secret = {"signal.kafka.password": "hunter2"}
    pipeline.client.put_config(pipeline.connector, {**live, **secret, "extended.headers.enabled": "true"})
    pipeline.wait_until_running()
    refused = pipeline.outboxctl("register")
    assert refused.code == 7, refused.text
    assert "was not made from this configuration (extended.headers.enabled)" in refused.err
    forced = pipeline.outboxctl("register", "--force", "--wait", "0", "--backup-dir", str(tmp_path))
    assert forced.code == 0, forced.text
    assert "hunter2" not in refused.text + forced.text
    (kept,) = tmp_path.glob("*Z.json")
    assert json.loads(kept.read_text())["config"]["signal.kafka.password"] == "hunter2"
