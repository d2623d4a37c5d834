"""Comparing what is there with what should be: pure functions, no server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import pytest
from psycopg import sql

from outbox_connectors.definition import Definition, Outbox, TopicSpec
from outbox_connectors.errors import ExitCode
from outbox_connectors.findings import Severity
from outbox_connectors.loading import loads
from outbox_pipeline.connect.client import ConnectorStatus, TaskStatus
from outbox_pipeline.provision import debezium_connector, event_topics, publications, roles, server, tables
from outbox_pipeline.provision.publications import LivePublication
from outbox_pipeline.provision.server import LiveServer
from outbox_pipeline.servers import slots
from outbox_pipeline.servers.admin_rights import Rights
from outbox_pipeline.servers.plan import ChangeKind, FieldChange, ObjectPlan, Plan, State, blocked, text_of
from outbox_pipeline.servers.slots import LiveSlot
from outbox_pipeline.servers.topics import TopicState

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
ADMIN = Rights("admin", True, True, True, True, True, True, True, True, server_major=18)


def definition(**sections: Any) -> Definition:
    document: dict[str, Any] = {
        "pipeline": "shop",
        "postgres": {
            "connector": {"host": "db", "database": "shop", "user": "shop_cdc", "password": "${env:CDC}"}
        },
        "kafka": {"client": {"bootstrap.servers": "kafka:9092"}, "aggregates": {"order": {}}},
    }
    return loads(json.dumps({**document, **sections}), source="outbox.yaml", environ={})


# -- the plan ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("states", "unseen", "code"),
    [
        ((State.PRESENT,), False, ExitCode.OK),
        ((State.PRESENT, State.MISSING), False, ExitCode.DIFFERENT),
        ((State.DIFFERENT,), False, ExitCode.DIFFERENT),
        ((State.BLOCKED,), False, ExitCode.DIFFERENT),
        ((State.BLOCKED,), True, ExitCode.UNREACHABLE),
    ],
)
def test_exit_code(states: tuple[State, ...], unseen: bool, code: ExitCode) -> None:
    objects = tuple(ObjectPlan("slot", "s", state, unseen=unseen) for state in states)
    assert Plan(objects).exit_code is code


def test_document_of_a_plan() -> None:
    plan = Plan((blocked("slot", "s", "lost", "make it anew", changes=[FieldChange("a", "1", "2")]),))
    found = plan.document()
    assert found["differences"] == 1
    assert found["objects"][0]["changes"] == [{"field": "a", "have": "1", "want": "2"}]
    assert (found["objects"][0]["why"], found["objects"][0]["remedy"]) == ("lost", "make it anew")


def test_a_script_ends_each_statement() -> None:
    statements = [sql.SQL("-- one\nSELECT {}").format(1), sql.SQL("-- two\nSELECT {}").format("it's")]
    assert text_of(statements) == "-- one\nSELECT 1;\n-- two\nSELECT 'it''s';"


# -- server ------------------------------------------------------------------------------------------


def live_server(**settings: str) -> LiveServer:
    sound = {
        "wal_level": "logical",
        "output_plugin_libraries": "pgoutput, test_decoding",
        "max_replication_slots": "10",
        "max_wal_senders": "10",
        "max_slot_wal_keep_size": "1024",
        "wal_sender_timeout": "60000",
        "idle_in_transaction_session_timeout": "600000",
    }
    values = {name: {"value": value, "unit": ""} for name, value in {**sound, **settings}.items()}
    return LiveServer(False, values, 1, 1, ["standby"], major=18)


def test_a_sound_server_has_nothing_to_say() -> None:
    live = live_server()
    assert server.plan(live, slot_exists=False, slot_active=False).state is State.PRESENT
    assert list(server.findings(live)) == []


@pytest.mark.parametrize(
    ("live", "field"),
    [
        (live_server(wal_level="replica"), "wal_level"),
        (live_server(output_plugin_libraries="test_decoding"), "output_plugin_libraries"),
        (live_server(max_replication_slots="1"), "max_replication_slots"),
        (live_server(max_wal_senders="1"), "max_wal_senders"),
        (replace(live_server(), in_recovery=True), "role"),
        (replace(live_server(), major=13), "version"),
    ],
)
def test_a_server_that_cannot_decode_is_blocked(live: LiveServer, field: str) -> None:
    found = server.plan(live, slot_exists=False, slot_active=False)
    assert found.state is State.BLOCKED
    assert [change.field for change in found.changes] == [field]
    assert found.remedy


def test_no_room_is_needed_for_what_is_there_already() -> None:
    live = live_server(max_replication_slots="1", max_wal_senders="1")
    assert server.plan(live, slot_exists=True, slot_active=True).state is State.PRESENT


def test_a_setting_we_may_not_see_is_no_difference() -> None:
    live = live_server()
    hidden = {name: value for name, value in live.settings.items() if name != "output_plugin_libraries"}
    found = server.plan(replace(live, settings=hidden), slot_exists=False, slot_active=False)
    assert found.state is State.PRESENT


@pytest.mark.parametrize(
    ("settings", "code", "severity"),
    [
        ({"max_slot_wal_keep_size": "-1"}, "wal-unbounded", Severity.WARNING),
        ({"wal_sender_timeout": "0"}, "wal-sender-timeout", Severity.WARNING),
        ({"wal_sender_timeout": "5000"}, "wal-sender-timeout", Severity.WARNING),
        ({"idle_in_transaction_session_timeout": "0"}, "idle-transactions", Severity.WARNING),
        ({"idle_replication_slot_timeout": "3600"}, "idle-slot-timeout", Severity.WARNING),
        ({"max_replication_slots": "2"}, "no-spare-slots", Severity.WARNING),
        ({"max_wal_senders": "2"}, "no-spare-senders", Severity.WARNING),
        ({"synchronized_standby_slots": "gone"}, "standby-slots", Severity.CRITICAL),
    ],
)
def test_findings_on_a_server(settings: dict[str, str], code: str, severity: Severity) -> None:
    assert [(f.code, f.severity) for f in server.findings(live_server(**settings))] == [(code, severity)]


def test_a_standby_slot_that_is_active_is_fine() -> None:
    assert list(server.findings(live_server(synchronized_standby_slots="standby"))) == []


# -- slot and publication ----------------------------------------------------------------------------


def live_slot(**changed: Any) -> LiveSlot:
    sound: dict[str, Any] = {
        "plugin": "pgoutput", "kind": "logical", "database": "shop", "temporary": False, "active": True,
        "active_pid": 7, "active_user": "shop_cdc", "active_application": "Debezium Streaming",
        "wal_status": "reserved", "restart_lsn": "0/1", "confirmed_flush_lsn": "0/2", "safe_wal_size": None,
        "conflicting": False, "invalidation_reason": None, "failover": True, "inactive_since": None,
    }  # fmt: skip
    return LiveSlot(**{**sound, **changed})


@pytest.mark.parametrize(
    ("changed", "state", "text"),
    [
        ({}, State.PRESENT, ""),
        ({"failover": False}, State.DIFFERENT, "replication connection"),
        ({"kind": "physical", "plugin": None, "database": None}, State.BLOCKED, "type is physical"),
        ({"plugin": "wal2json"}, State.BLOCKED, "plugin is wal2json"),
        ({"database": "other"}, State.BLOCKED, "database is other"),
        ({"temporary": True}, State.BLOCKED, "temporary"),
        ({"wal_status": "lost", "restart_lsn": None}, State.BLOCKED, "is lost (wal_removed)"),
        ({"invalidation_reason": "idle_timeout"}, State.BLOCKED, "is lost (idle_timeout)"),
        ({"active_user": "rival"}, State.BLOCKED, "in use by rival"),
        ({"active": False, "active_user": None, "active_pid": None}, State.PRESENT, ""),
    ],
)
def test_slot(changed: dict[str, Any], state: State, text: str) -> None:
    found = slots.plan(live_slot(**changed), definition(), ADMIN)
    assert found.state is state
    assert text in found.why


def test_failover_is_wanted_from_17_on() -> None:
    live = live_slot(failover=None)
    assert slots.plan(live, definition(), replace(ADMIN, server_major=16)).state is State.PRESENT


def live_publication(**changed: Any) -> LivePublication:
    outbox = {"schema": "public", "name": "outbox", "filter": None, "columns": None}
    sound: dict[str, Any] = {
        "owner": "admin", "ours": True, "all_tables": False, "inserts": True, "updates": False,
        "deletes": False, "truncates": False, "via_root": False, "tables": [outbox], "schemas": [],
    }  # fmt: skip
    return LivePublication(**{**sound, **changed})


def planned_publication(
    live: LivePublication | None, major: int = 18, slot: LiveSlot | None = None
) -> ObjectPlan:
    rights = replace(ADMIN, server_major=major)
    return publications.plan(live, definition(), rights, owns_table=True, slot=slot, now=NOW)


@pytest.mark.parametrize(
    ("changed", "state", "fields"),
    [
        ({}, State.PRESENT, []),
        ({"tables": []}, State.DIFFERENT, ["tables"]),
        ({"tables": [], "schemas": ["public"]}, State.PRESENT, []),
        ({"tables": [], "all_tables": True}, State.PRESENT, []),
        ({"inserts": False, "updates": True}, State.DIFFERENT, ["publish"]),
        ({"inserts": False, "ours": False}, State.BLOCKED, ["publish"]),
    ],
)
def test_publication(changed: dict[str, Any], state: State, fields: list[str]) -> None:
    found = planned_publication(live_publication(**changed))
    assert found.state is state
    assert [change.field for change in found.changes] == fields


def test_a_missing_publication_beside_a_slot_names_the_time_that_is_in_danger() -> None:
    [warning] = planned_publication(None, slot=live_slot()).warnings
    assert "until 2026-11-29 12:00:00 UTC" in warning
    assert "without any error" in warning
    [warning] = planned_publication(None, 17, live_slot()).warnings
    assert "PostgreSQL 17 cannot decode" in warning
    assert planned_publication(None).warnings == ()


# -- role --------------------------------------------------------------------------------------------

CUSTOMER = replace(ADMIN, superuser=False, replication=False)


def planned_role(rights: Rights, live: roles.LiveRole | None = None) -> ObjectPlan:
    login = {"host": "db", "database": "shop", "user": "cdc", "password": "${env:CDC}", "role_password": "x"}
    return roles.plan_role(live, None, definition(postgres={"connector": login}), rights)


def test_a_role_with_replication_is_made_by_who_may() -> None:
    assert planned_role(CUSTOMER).state is State.BLOCKED
    assert planned_role(replace(CUSTOMER, replication=True)).state is State.MISSING
    assert planned_role(replace(CUSTOMER, replication=True, server_major=15)).state is State.BLOCKED


def test_on_rds_replication_is_a_membership() -> None:
    found = planned_role(replace(CUSTOMER, rds_replication=True))
    assert found.state is State.MISSING
    assert [text.as_string(None).split("\n")[1][:40] for text in found.sql] == [
        'CREATE ROLE "cdc" LOGIN NOCREATEDB NOCRE',
        'GRANT rds_replication TO "cdc"',
    ]
    member = roles.LiveRole(True, False, False, False, False, False, True, True, None)
    assert planned_role(replace(CUSTOMER, rds_replication=True), member).state is State.PRESENT
    assert slots.plan(None, definition(), replace(CUSTOMER, rds_replication=True)).state is State.MISSING


# -- topics ------------------------------------------------------------------------------------------

SPEC = TopicSpec("outbox.event.order", 6, 1, {"retention.ms": "1000", "cleanup.policy": "delete"})


def live_topic(partitions: int = 6, config: Mapping[str, str] | None = None) -> TopicState:
    sound = {"retention.ms": "1000", "cleanup.policy": "delete", "max.message.bytes": "1048588"}
    return TopicState(SPEC.name, partitions, 1, {**sound, **(config or {})}, {}, 0)


@pytest.mark.parametrize(
    ("live", "state"),
    [
        (None, State.MISSING),
        (live_topic(), State.PRESENT),
        (live_topic(12), State.PRESENT),
        (live_topic(3), State.BLOCKED),
        (live_topic(config={"retention.ms": "500"}), State.DIFFERENT),
        (live_topic(config={"retention.ms": "2000"}), State.BLOCKED),
        (live_topic(config={"retention.ms": "-1"}), State.BLOCKED),
        (live_topic(config={"cleanup.policy": "compact"}), State.BLOCKED),
        (live_topic(config={"max.message.bytes": "1000"}), State.DIFFERENT),
    ],
)
def test_topic(live: TopicState | None, state: State) -> None:
    assert event_topics.plan(live, SPEC).state is state


def test_partitions_are_added_on_request() -> None:
    found = event_topics.plan(live_topic(3), SPEC, add_partitions=True)
    assert (found.state, found.changes) == (State.DIFFERENT, (FieldChange("partitions", "3", "6"),))


def test_fewer_replicas_than_asked_for_are_a_warning() -> None:
    found = event_topics.plan(live_topic(), replace(SPEC, replication_factor=3))
    assert found.state is State.PRESENT
    assert "has 1 replicas" in found.warnings[0]


def test_topics_of_a_pipeline_in_both_heartbeat_forms() -> None:
    own = ["outbox.event.order", "shop.message"]
    assert [spec.name for spec in event_topics.specs(definition())] == own
    off = definition(watch={"ticker": "off"})
    assert [spec.name for spec in event_topics.specs(off)] == [*own, "__debezium-heartbeat.shop"]


# -- connector ---------------------------------------------------------------------------------------

WANTED = {
    "connector.class": "Debezium",
    "database.dbname": "shop",
    "slot.name": "shop",
    "database.password": "${env:CDC}",
    "poll.interval.ms": "10",
}


def status(state: str, *tasks: str) -> ConnectorStatus:
    trace = "java.lang.IllegalStateException: no slot\n\tat x.Y.z(Y.java:1)"
    found = tuple(TaskStatus(n, t, "w", trace if t == "FAILED" else "") for n, t in enumerate(tasks))
    return ConnectorStatus("shop", state, "w", found)


@pytest.mark.parametrize(
    ("live", "seen", "state", "fields"),
    [
        (None, None, State.MISSING, []),
        ({**WANTED, "name": "shop"}, status("RUNNING", "RUNNING"), State.PRESENT, []),
        ({**WANTED, "poll.interval.ms": "500"}, status("RUNNING"), State.DIFFERENT, ["poll.interval.ms"]),
        ({**WANTED, "extra": "1"}, status("RUNNING"), State.DIFFERENT, ["extra"]),
        (WANTED, status("RUNNING", "FAILED"), State.DIFFERENT, ["state"]),
        (WANTED, status("PAUSED", "PAUSED"), State.BLOCKED, ["state"]),
        (WANTED, status("STOPPED"), State.BLOCKED, ["state"]),
        ({**WANTED, "slot.name": "other"}, status("RUNNING"), State.BLOCKED, ["slot.name"]),
    ],
)
def test_connector(
    live: dict[str, str] | None, seen: ConnectorStatus | None, state: State, fields: list[str]
) -> None:
    found = debezium_connector.plan(live, seen, WANTED, "shop")
    assert found.state is state
    assert [change.field for change in found.changes] == fields


def test_secrets_of_a_connector_are_hidden() -> None:
    found = debezium_connector.plan({**WANTED, "database.password": "secret1"}, None, WANTED, "shop")
    assert found.changes == (FieldChange("database.password", "***", "${env:CDC}"),)
    plain = {**WANTED, "database.password": "secret2"}
    assert "secret2" not in debezium_connector.plan(None, None, plain, "shop").statement


# -- table -------------------------------------------------------------------------------------------


def test_both_forms_of_the_table_have_the_same_checks() -> None:
    plain, daily = definition().outbox, definition(outbox={"partition": "daily"}).outbox
    assert tables.expected_checks(plain) == tables.expected_checks(daily)
    assert len(tables.expected_checks(plain)) == 8


def test_partitions_of_a_day() -> None:
    names = tables.expected_partitions(definition().outbox, date(2026, 12, 30))
    assert names[:3] == ("outbox_default", "outbox_20261230", "outbox_20261231")
    assert names[3] == "outbox_20270101"
    assert len(names) == tables.DAYS_AHEAD + 2


def test_missing_columns_and_partitions_say_their_kind_and_name() -> None:
    outbox = definition(outbox={"partition": "daily"}).outbox
    today = date(2026, 12, 30)
    present, missing = (
        tables.expected_partitions(outbox, today)[:-1],
        tables.expected_partitions(outbox, today)[-1],
    )
    options = [f"{name}={value}" for name, value in tables.expected_options().items()]
    live = tables.LiveTable(
        kind="p",
        owner="app",
        ours=True,
        options=(),
        partition_key="RANGE (occurred_at)",
        columns=[column for column in live_columns(outbox) if column["name"] != "traceparent"],
        primary_key=("id", "occurred_at"),
        checks=tables.expected_checks(outbox),
        row_triggers={tables.TRIGGER: True},
        partitions={name: {"options": options} for name in present},
    )
    planned = tables.plan(live, outbox, ADMIN, today)
    found = [(change.kind, change.subject) for change in planned.changes]
    assert found == [
        (ChangeKind.MISSING_COLUMN, "traceparent"),
        (ChangeKind.MISSING_PARTITION, missing),
        (ChangeKind.PARTITION_PARAMETERS, missing),
    ]


def live_columns(outbox: Outbox) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "type": sql_type,
            "not_null": not nullable,
            "default": None,
            "identity": name == "position",
        }
        for name, sql_type, nullable in tables._wanted_columns(outbox)
    ]
