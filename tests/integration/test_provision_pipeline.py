"""`outboxctl plan | apply | destroy | render` on a whole pipeline: PostgreSQL, Kafka and Connect for real."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from fix_provision import PASSWORD, Pipeline
from fix_stack import Stack
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.provision import doctor
from outbox_pipeline.servers import topics
from waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack


@pytest.fixture
def pipeline(own_pipeline: Pipeline) -> Pipeline:
    return own_pipeline


def test_from_nothing_to_a_proven_way_and_back(pipeline: Pipeline) -> None:
    before = pipeline.run("plan")
    assert before.code == 3
    applied = pipeline.run("apply")
    assert (applied.code, applied.err.count("created")) == (0, 9)
    assert re.search(r"proved: task running after \d+\.\d s", applied.out)
    assert "canary from PostgreSQL to Kafka in" in applied.out
    assert pipeline.run("plan").code == 0

    pipeline.sql("DROP PUBLICATION {publication}")
    name = pipeline.site.definition.postgres.publication
    dropped = pipeline.run("plan")
    assert dropped.code == 3
    assert f"missing    publication  {name}" in dropped.out
    mended = pipeline.run("apply", "--no-wait")
    assert mended.code == 0
    assert "skips, without any error, rows of public.outbox" in mended.err

    again = pipeline.run("--json", "apply")
    assert again.code == 0
    assert {one["state"] for one in again.document()["objects"]} == {"present"}
    assert again.document()["proof"]["canary_seconds"] > 0
    assert pipeline.run("plan").code == 0


def test_destroy_takes_what_apply_made_and_keeps_events(pipeline: Pipeline) -> None:
    assert pipeline.run("apply", "--no-wait").code == 0
    dry = pipeline.run("--json", "destroy", "--dry-run")
    assert {one["action"] for one in dry.document()["objects"]} == {"remove", "keep"}
    assert pipeline.plan() == {}
    asked = pipeline.run("destroy")
    assert asked.code == 2
    assert "add --yes" in asked.err

    done = pipeline.run("--json", "destroy", "--yes").document()["objects"]
    assert {one["kind"]: one["action"] for one in done} == {
        "connector": "removed", "slot": "removed", "publication": "removed", "role": "removed",
        "topic": "keep", "table": "keep",
    }  # fmt: skip
    left = pipeline.plan()
    assert not [title for title in left if title.startswith(("table", "topic"))]
    again = pipeline.run("--json", "destroy", "--yes").document()["objects"]
    assert {one["action"] for one in again} == {"absent", "keep"}
    assert pipeline.run("apply", "--no-wait").code == 0, "and it can be made again"


def test_an_owner_without_superuser_applies_and_destroys(
    pipeline: Pipeline, own_roles: Callable[[Stack, str], None]
) -> None:
    server, name = pipeline.site.database.server, f"{pipeline.site.definition.pipeline}_admin"
    own_roles(server, name)
    with pipeline.site.database.connect() as conn:
        role, database = sql.Identifier(name), sql.Identifier(pipeline.site.database.name)
        create = sql.SQL("CREATE ROLE {} LOGIN CREATEROLE REPLICATION PASSWORD {}")
        conn.execute(create.format(role, PASSWORD))
        conn.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(database, role))
    conninfo = make_conninfo(pipeline.site.database.conninfo, user=name, password=PASSWORD)
    owner = pipeline.changed(postgres={"admin": conninfo})
    assert owner.run("apply", "--no-wait").code == 0
    assert owner.plan() == {}
    done = owner.run("--json", "destroy", "--yes", "--data").document()["objects"]
    assert {one["action"] for one in done} == {"removed"}


def test_destroy_leaves_alone_what_is_skipped(pipeline: Pipeline) -> None:
    assert pipeline.run("apply", "--no-wait").code == 0
    with pipeline.client() as client:
        client.delete(pipeline.site.definition.connect.connector)
    deaf = pipeline.changed(
        connect={"url": "http://127.0.0.1:1"}, kafka={"client": {"bootstrap.servers": "127.0.0.1:1"}}
    )
    answer = deaf.run("destroy", "--yes")
    assert answer.code == 6
    assert "destroy --skip connect" in answer.err
    skipping = ("destroy", "--yes", "--skip", "connect", "--skip", "kafka")
    done = deaf.run("--json", *skipping).document()["objects"]
    assert {one["kind"]: (one["action"], one["why"]) for one in done if one["kind"] != "table"} == {
        "connector": ("keep", "--skip connect"), "topic": ("keep", "--skip kafka"),
        "slot": ("removed", ""), "publication": ("removed", ""), "role": ("removed", ""),
    }  # fmt: skip


def test_destroy_leaves_what_cannot_be_ours(pipeline: Pipeline) -> None:
    pipeline.sql("CREATE TABLE customers (id int PRIMARY KEY)")
    pipeline.sql("CREATE PUBLICATION {publication} FOR TABLE customers")
    pipeline.sql("SELECT pg_create_logical_replication_slot({slot}, 'test_decoding')")
    done = pipeline.run("--json", "destroy", "--yes").document()["objects"]
    assert [(one["kind"], one["action"], one["why"]) for one in done][1:3] == [
        ("slot", "keep", f"it is for test_decoding in database {pipeline.site.database.name}"),
        ("publication", "keep", "it publishes public.customers too"),
    ]


def test_a_connector_that_drifted_is_shown_field_by_field_and_set_right(pipeline: Pipeline) -> None:
    assert pipeline.run("apply", "--no-wait").code == 0
    name = pipeline.site.definition.connect.connector
    with pipeline.client() as client:
        config = client.config(name)
        assert config is not None
        plain = pipeline.site.database.server.environ["OUTBOX_CDC_PASSWORD"]
        client.put_config(name, {**config, "poll.interval.ms": "500", "database.password": plain})
    found = pipeline.run("--json", "plan").document()["objects"][-1]
    assert found["state"] == "different"
    assert found["changes"] == [
        {"field": "database.password", "have": "***", "want": "${env:OUTBOX_CDC_PASSWORD}"},
        {"field": "poll.interval.ms", "have": "500", "want": config["poll.interval.ms"]},
    ]
    assert pipeline.run("apply", "--no-wait").code == 0
    assert pipeline.plan() == {}


def test_a_failed_task_is_named_and_started_again(pipeline: Pipeline) -> None:
    assert pipeline.run("apply", "--no-wait").code == 0
    name = pipeline.site.definition.connect.connector
    pipeline.sql("DROP PUBLICATION {publication}")
    with pipeline.client() as client:
        client.restart(name)
        until(lambda: (status := client.status(name)) is not None and status.failed)
    plan = pipeline.plan()
    assert plan[f"connector {name}"] == "different"
    assert pipeline.run("apply", "--no-wait").code == 0
    until(lambda: pipeline.plan() == {})


def test_a_connector_that_was_stopped_stays_stopped(pipeline: Pipeline) -> None:
    assert pipeline.run("apply", "--no-wait").code == 0
    name = pipeline.site.definition.connect.connector
    with pipeline.client() as client:
        client.stop(name)
    answer = pipeline.run("apply")
    assert answer.code == 1
    assert f"outboxctl connectors resume {name}" in answer.err


def test_a_connector_of_another_slot_is_not_taken_over(pipeline: Pipeline) -> None:
    assert pipeline.run("apply", "--no-wait").code == 0
    other = pipeline.changed(postgres={"slot": f"{pipeline.site.definition.pipeline}_other"})
    answer = other.run("apply", "--no-wait")
    assert answer.code == 1
    assert "exists for something else: slot.name is" in answer.err
    pipeline.run("destroy", "--yes")
    other.run("destroy", "--yes")


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"snapshot.mode": "nonsense"}, "snapshot.mode"),
        (
            {"database.password": "${env:NOBODY_SET_THIS}"},
            "the worker cannot resolve ${env:NOBODY_SET_THIS} and sends it literally",
        ),
        ({"database.port": "1"}, "refused"),
        ({"transforms.outbox.type": "org.example.Nothing"}, "transforms.outbox.type"),
    ],
)
def test_a_connector_that_connect_refuses(pipeline: Pipeline, config: dict[str, str], complaint: str) -> None:
    answer = pipeline.changed(connect={"config": config}).run("apply")
    assert answer.code == 1
    assert complaint in answer.err
    assert answer.err.count("error:") == 1
    with pipeline.client() as client:
        assert client.config(pipeline.site.definition.connect.connector) is None


def test_a_broken_configuration_that_connect_calls_fine_ends_the_wait(pipeline: Pipeline) -> None:
    """Validation finds nothing wrong with an undefined predicate; the task fails at its start."""
    broken = pipeline.changed(connect={"config": {"transforms.outbox.predicate": "nobody"}})
    answer = broken.run("apply")
    assert answer.code == 1
    assert "FAILED" in answer.err


def test_a_topic_with_fewer_partitions_needs_a_word(pipeline: Pipeline) -> None:
    assert pipeline.run("apply", "--no-wait").code == 0
    wider = pipeline.changed(kafka={"defaults": {"partitions": 4}})
    answer = wider.run("plan")
    assert "has 2 partitions, the definition asks for 4" in answer.out
    assert wider.run("apply", "--no-wait").code == 1
    assert wider.run("apply", "--no-wait", "--add-partitions").code == 0
    assert wider.plan() == {}
    assert pipeline.plan() == {f"connector {wider.site.definition.connect.connector}": "different"}


def test_a_topic_is_never_narrowed(pipeline: Pipeline) -> None:
    config = {"retention.ms": "600000", "max.message.bytes": "2000000"}
    assert pipeline.changed(kafka={"defaults": {"config": config}}).run("apply", "--no-wait").code == 0
    shorter = pipeline.changed(kafka={"defaults": {"config": {**config, "retention.ms": "60000"}}})
    answer = shorter.run("apply", "--no-wait")
    assert answer.code == 1
    assert "retention.ms is 600000, and 60000 could delete or refuse events" in answer.err
    longer = pipeline.changed(kafka={"defaults": {"config": {**config, "retention.ms": "-1"}}})
    assert longer.run("apply", "--no-wait").code == 0
    name = pipeline.site.definition.kafka.topic_of("order")
    state = topics.inspect(pipeline.site.definition.kafka, [name])[name]
    assert state is not None
    assert state.config["retention.ms"] == "-1"


# -- several at once, and interrupted ----------------------------------------------------------------


def test_two_at_once_take_turns(pipeline: Pipeline) -> None:
    first, second = pipeline.start("apply", "--no-wait"), pipeline.start("apply", "--no-wait")
    said = [process.communicate(timeout=PATIENCE_SECONDS)[1] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), said
    assert pipeline.plan() == {}
    created = [text.count(": created") for text in said]
    assert sorted(created) == [0, 9]


def test_ctrl_c_while_the_slot_waits_leaves_no_slot(pipeline: Pipeline) -> None:
    with open_transaction(pipeline), pipeline.start("apply", "--no-wait") as process:
        assert process.stderr is not None
        while "open transactions, the oldest is" not in (line := process.stderr.readline()):
            assert line
        until(lambda: pipeline.sql("SELECT 1 FROM pg_replication_slots WHERE slot_name = {slot}") != [])
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 1
        until(lambda: pipeline.sql("SELECT 1 FROM pg_replication_slots WHERE slot_name = {slot}") == [])
    assert pipeline.run("apply", "--no-wait").code == 0


@contextmanager
def open_transaction(pipeline: Pipeline) -> Iterator[None]:
    """Keep a transaction open that has written."""
    with pipeline.site.database.connect() as conn, conn.transaction(force_rollback=True):
        conn.execute("CREATE TABLE unfinished (id int)")
        yield


# -- systems that do not answer ----------------------------------------------------------------------


def test_without_kafka_the_rest_is_still_looked_at(untouched: Pipeline) -> None:
    deaf = untouched.changed(kafka={"client": {"bootstrap.servers": "127.0.0.1:1"}})
    answer = deaf.run("--json", "plan")
    assert answer.code == 6
    objects = answer.document()["objects"]
    unseen = {one["kind"] for one in objects if one["unseen"]}
    assert unseen == {"topic"}
    assert "127.0.0.1:1" in next(one["why"] for one in objects if one["kind"] == "topic")


def test_without_connect_the_rest_is_still_looked_at(pipeline: Pipeline) -> None:
    deaf = pipeline.changed(connect={"url": "http://127.0.0.1:1"})
    answer = deaf.run("plan")
    assert answer.code == 6
    assert "could not be looked at" in answer.out
    applied = deaf.run("apply", "--no-wait")
    assert applied.code == 6
    assert "connector" in applied.err
    assert deaf.plan()[f"slot {deaf.site.definition.postgres.slot}"] == "missing", "nothing was made"


def test_a_worker_that_does_not_answer_is_asked_once(untouched: Pipeline) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, untouched.site.admin() as conn:
        silent.settimeout(PATIENCE_SECONDS)
        definition = untouched.changed(
            connect={"url": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        ).site.definition
        with ConnectClient(definition.connect, timeout=0.2) as client:
            report = doctor.examine(conn, client, definition)
        silent.accept()[0].close()
        silent.settimeout(0)
        with pytest.raises(BlockingIOError):
            silent.accept()
    assert report.exit_code == 5
    [unseen] = report.unseen
    assert "no answer to GET /connector-plugins within 0.2 s" in unseen


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("password=wrong", "password authentication failed"),
        ("port=1", "refused"),
        ("user=nobody_at_all", "nobody_at_all"),
        ("sslmode=require", "SSL"),
        ("'", "libpq can read"),
    ],
)
def test_without_postgres_there_is_one_line(untouched: Pipeline, change: str, complaint: str) -> None:
    conninfo = f"{untouched.site.database.conninfo} {change}"
    answer = untouched.changed(postgres={"admin": conninfo}).run("plan")
    assert answer.code in (2, 6)
    assert complaint in answer.err
    assert answer.err.count("\n") == 1


def test_a_table_that_is_not_there_is_one_line(untouched: Pipeline) -> None:
    answer = untouched.run("audit")
    assert answer.code == 1
    assert answer.err.startswith(
        'error: PostgreSQL: relation "public.outbox" does not exist; run outboxctl plan'
    )
    assert answer.err.count("\n") == 1


# -- what can be read without changing anything ------------------------------------------------------


def test_the_script_for_a_dba(untouched: Pipeline) -> None:
    shown = untouched.run("plan", "--sql")
    assert shown.code == 3
    assert "CREATE TABLE" in shown.out
    assert "SCRAM-SHA-256" not in shown.out
    assert "\\password" in shown.out
    with_verifier = untouched.run("plan", "--sql", "--verifier")
    assert "PASSWORD 'SCRAM-SHA-256$4096:" in with_verifier.out
    assert untouched.run("plan", "--verifier").code == 2


def test_the_plan_as_json_has_its_agreed_fields(untouched: Pipeline) -> None:
    document = untouched.run("--json", "plan").document()
    assert document["differences"] == len(document["objects"]) - 1
    for one in document["objects"]:
        assert {"kind", "name", "state", "changes", "statement"} <= one.keys()
    connector = json.loads(document["objects"][-1]["statement"])
    assert connector["database.password"] == "${env:OUTBOX_CDC_PASSWORD}"
    assert untouched.run("apply", "--dry-run", "--json").document() == document


def test_render_explains_each_property(untouched: Pipeline) -> None:
    config = untouched.run("render").document()["config"]
    assert config["slot.name"] == untouched.site.definition.postgres.slot
    given = untouched.run("render", "--debezium", "3.6.3.Final", "--postgres", "16", "--explain")
    assert given.code == 0
    assert "plugin.name = pgoutput" in given.out
    assert untouched.run("render", "--debezium", "latest").code == 2


def test_the_doctor_finds_a_sound_pipeline_and_a_sick_one(pipeline: Pipeline) -> None:
    assert pipeline.run("apply", "--no-wait").code == 0
    until(
        lambda: pipeline.sql("SELECT 1 FROM pg_replication_slots WHERE slot_name = {slot} AND active") != []
    )
    with pipeline.client() as client:  # which tells of the task a moment later
        name = pipeline.site.definition.connect.connector
        until(lambda: (s := client.status(name)) and [t.state for t in s.tasks] == ["RUNNING"], "the task")
    sound = pipeline.run("--json", "doctor")
    codes = {found["code"] for found in sound.document()["findings"]}
    assert sound.code == 4
    assert codes <= {"no-ticker", "idle-transactions", "wal-unbounded", "wal-sender-timeout"}
    pipeline.sql("ALTER TABLE outbox ALTER COLUMN payload SET DEFAULT '{{}}'")
    pipeline.sql("DROP PUBLICATION {publication}")
    pipeline.sql("DROP TRIGGER keep_copy_rows_apart ON outbox")
    sick = pipeline.run("--json", "doctor")
    codes = {found["code"] for found in sick.document()["findings"]}
    assert sick.code == 5
    assert codes >= {"publication-missing", "default-on-nullable", "no-row-trigger"}
    for found in sick.document()["findings"]:
        assert found["cause"]
        assert found["source"]
