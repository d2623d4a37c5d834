"""Logical messages: only who ticks writes them, and `recover` gets past one that stops the connector."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from fix_provision import PASSWORD, Pipeline, Site
from fix_stack import Database, Stack
from outbox_pipeline import outbox, provision
from outbox_pipeline.provision import message_rights
from outbox_pipeline.servers import logical_messages, slots
from outbox_pipeline.servers.plan import ObjectPlan, State
from outbox_pipeline.watch import heartbeat
from waiting import until

pytestmark = [pytest.mark.stack, pytest.mark.matrix]

EMITS = (
    "SELECT pg_logical_emit_message(false, 'any', 'x')",
    "SELECT pg_logical_emit_message(false, 'any', '\\x00'::bytea)",
)


def stranger(database: Database, name: str) -> psycopg.Connection:
    """Log in as a role that can connect and has no other right."""
    with database.connect() as conn:
        conn.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(name), PASSWORD))
    return psycopg.connect(make_conninfo(database.conninfo, user=name, password=PASSWORD), autocommit=True)


@pytest.fixture
def outsider(site: Site, own_roles: Callable[[Stack, str], None]) -> Iterator[psycopg.Connection]:
    name = f"{site.definition.pipeline}_stranger"
    own_roles(site.database.server, name)
    with stranger(site.database, name) as conn:
        yield conn


def planned(site: Site) -> ObjectPlan:
    with site.admin() as conn:
        objects = [part.look() for part in provision.postgres_parts(conn, site.definition)]
    return next(found for found in objects if found.kind == message_rights.KIND)


def changed(site: Site, **sections: object) -> Site:
    document = {**site.document}
    for name, members in sections.items():
        assert isinstance(members, dict)
        document[name] = {**document.get(name, {}), **members}
    return Site(site.database, document)


def test_apply_takes_messages_from_public_and_grants_them_to_who_ticks(
    site: Site, outsider: psycopg.Connection
) -> None:
    for statement in EMITS:
        outsider.execute(statement.encode())
    before = planned(site)
    assert before.state is State.DIFFERENT
    assert message_rights.REASON in before.statement
    assert message_rights.AFFECTED in before.statement
    with site.admin() as conn:
        provision.apply_postgres(conn, site.definition)
        heartbeat.tick(conn, site.definition.heartbeat_prefix)
    for statement in EMITS:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            outsider.execute(statement.encode())
    with site.connect(site.writer) as conn:
        logical_messages.emit(conn, site.definition.heartbeat_prefix)
    assert planned(site).state is State.PRESENT


def test_drift_is_seen_and_what_is_opted_out_is_left(site: Site) -> None:
    with site.admin() as conn:
        provision.apply_postgres(conn, site.definition)
        signature = conn.execute(
            "SELECT oid::regprocedure::text FROM pg_proc WHERE proname = 'pg_logical_emit_message' LIMIT 1"
        ).fetchone()
        assert signature is not None
        conn.execute(f"GRANT EXECUTE ON FUNCTION {signature[0]} TO PUBLIC".encode())
        assert [one.code for one in message_rights.findings(message_rights.read(conn, site.definition))] == [
            "messages-public"
        ]
    assert planned(site).state is State.DIFFERENT
    assert planned(changed(site, postgres={"restrict_messages": False})).state is State.PRESENT


def test_a_role_that_ticks_and_is_not_named_keeps_its_right(site: Site, outsider: psycopg.Connection) -> None:
    outsider.execute(f"SET application_name = '{slots.TICKER_APPLICATION}'".encode())
    found = planned(site)
    assert (found.state, found.sql) == (State.PRESENT, ())
    assert "watch.roles" in found.warnings[0]
    with site.admin() as conn:
        provision.apply_postgres(conn, site.definition)
    outsider.execute(EMITS[0].encode())
    named = changed(site, watch={"roles": [outsider.info.user]})
    with named.admin() as conn:
        provision.apply_postgres(conn, named.definition)
    outsider.execute(EMITS[0].encode())
    assert planned(named).state is State.PRESENT


def test_an_administrator_who_does_not_own_the_function_is_warned_and_not_stopped(
    site: Site, outsider: psycopg.Connection
) -> None:
    admin = make_conninfo(site.database.conninfo, user=outsider.info.user, password=PASSWORD)
    found = planned(changed(site, postgres={"admin": admin}))
    assert (found.state, found.sql) == (State.PRESENT, ())
    assert "its owner can: GRANT EXECUTE" in found.warnings[0]
    assert "REVOKE EXECUTE" in found.warnings[0]


# -- what a message does to a connector ----------------------------------------------------------------


def failed(pipeline: Pipeline) -> bool:
    with pipeline.client() as client:
        status = client.status(pipeline.site.definition.connect.connector)
    return status is not None and status.failed


def written(pipeline: Pipeline, count: int) -> None:
    with psycopg.connect(pipeline.site.database.conninfo) as conn:
        outbox.add_many(
            conn,
            [
                outbox.event(
                    aggregate_type="order", aggregate_id="42", event_type="OrderPlaced", payload=b"{}"
                )
                for _ in range(count)
            ],
        )


@pytest.mark.slow
def test_recover_gets_past_a_message_that_no_record_can_hold(
    own_pipeline: Pipeline, own_roles: Callable[[Stack, str], None]
) -> None:
    """With the payload as bytea the converter writes the message's content out, as base64."""
    pipeline = own_pipeline.changed(postgres={"restrict_messages": False}, outbox={"payload": "bytea"})
    applied = pipeline.run("apply", "--no-wait")
    assert applied.code == 0, applied.err
    written(pipeline, 3)
    name = f"{pipeline.site.definition.pipeline}_stranger"
    own_roles(pipeline.site.database.server, name)
    with stranger(pipeline.site.database, name) as conn:
        prefix = pipeline.site.definition.heartbeat_prefix
        attack = "SELECT pg_logical_emit_message(true, %s, decode(repeat('00', 1600000), 'hex'))"
        conn.execute(attack, (prefix,))
    written(pipeline, 2)
    until(lambda: failed(pipeline), "the task fails")
    assert pipeline.run("connectors", "restart", "--failed", "--force").code in (0, 1)
    until(lambda: failed(pipeline), "the task fails again")

    status = pipeline.run("--json", "status").document()
    assert status["verdict"] == "message_too_large"
    assert "recover" in status["next_step"]
    dry = pipeline.run("--json", "recover", "--dry-run")
    assert dry.code == 0, dry.err
    assert (dry.document()["code"], dry.document()["broken"]) == ("message_too_large", True)
    assert prefix in dry.document()["cause"]
    recovered = pipeline.run("recover", "--settle", "10")
    assert recovered.code == 0, recovered.err
    written(pipeline, 1)
    audited = pipeline.run("--json", "audit")
    assert (audited.code, audited.document()["written"], audited.document()["missing"]) == (0, 6, [])
