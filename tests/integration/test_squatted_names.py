"""A role that may create objects in the outbox's schema gets nothing run with an administrator's rights."""

from __future__ import annotations

from typing import LiteralString

import psycopg
import pytest
from psycopg import sql

from fix_provision import PASSWORD, Pipeline
from outbox_connectors.errors import ExitCode
from outbox_pipeline.provision import pipeline as provisioning
from outbox_pipeline.servers import trust

pytestmark = pytest.mark.stack

ATTACK: LiteralString = """
    CREATE FUNCTION public.attack() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.proof VALUES (current_user);
        RETURN NEW;
    END $$;
    CREATE FUNCTION public.attack_value() RETURNS text LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.proof VALUES (current_user);
        RETURN 'x';
    END $$;
    CREATE FUNCTION public.attack_bool(text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
    BEGIN
        INSERT INTO public.proof VALUES (current_user);
        RETURN true;
    END $$;
"""
ROAD: LiteralString = (
    "CREATE TABLE public.outbox_road (only_row boolean PRIMARY KEY DEFAULT true,"
    " road text, why text, since timestamptz DEFAULT now());"
    " GRANT ALL ON public.outbox_road TO PUBLIC;"
)
TRIGGER: LiteralString = " FOR EACH ROW EXECUTE FUNCTION public.attack();"
# What the role makes before anybody ran `apply`.
EARLY: dict[str, LiteralString] = {
    "trigger on the outbox": (
        "CREATE TABLE public.outbox (id uuid PRIMARY KEY); CREATE TRIGGER a BEFORE INSERT ON public.outbox"
        + TRIGGER
    ),
    "view": "CREATE VIEW public.outbox AS SELECT public.attack_value() AS id, now() AS occurred_at",
}
# What it makes beside an outbox that is there.
LATE: dict[str, LiteralString] = {
    "trigger": ROAD + "CREATE TRIGGER a BEFORE INSERT ON public.outbox_road" + TRIGGER,
    "owner": ROAD,
    "rule": ROAD + "CREATE RULE a AS ON INSERT TO public.outbox_road DO ALSO SELECT public.attack_value();",
    "default": ROAD + "ALTER TABLE public.outbox_road ADD x text DEFAULT public.attack_value();",
    "check": ROAD + "ALTER TABLE public.outbox_road ADD CHECK (public.attack_bool(why));",
    "policy": ROAD + "ALTER TABLE public.outbox_road ENABLE ROW LEVEL SECURITY;"
    "CREATE POLICY a ON public.outbox_road USING (public.attack_bool(why));",
    "index": ROAD + "CREATE INDEX a ON public.outbox_road (public.attack_bool(why));",
    "relay's settings": "CREATE TABLE public.outbox_relay (pipeline text, shards integer);"
    "CREATE TRIGGER a BEFORE INSERT ON public.outbox_relay" + TRIGGER,
    "dead letters": "CREATE TABLE public.outbox_dead_letter (id uuid);",
    "log of replays": "CREATE TABLE public.outbox_replay (id uuid);",
    "wake-up function": "CREATE FUNCTION public.outbox_wake_relay() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN INSERT INTO public.proof VALUES (current_user); RETURN NEW; END $$;",
}
# What it puts on a table that is ours, having been granted TRIGGER on it, or its owner used a function of it.
ON_OURS: dict[str, LiteralString] = {
    "trigger": "CREATE TRIGGER a BEFORE INSERT ON public.outbox" + TRIGGER,
    "default": "ALTER TABLE public.outbox ADD x text DEFAULT public.attack_value()",
    "policy": "CREATE POLICY a ON public.outbox USING (public.attack_bool(event_type))",
    "check": "ALTER TABLE public.outbox ADD CONSTRAINT a CHECK (public.attack_bool(event_type))",
    "index": "CREATE INDEX a ON public.outbox (public.attack_bool(event_type))",
}
COMMANDS = (
    ("apply",),
    ("send", "order", "1", "Placed", "{}"),
    ("relay", "--init"),
    ("relay", "--until-empty"),
    ("recover",),
    ("switch", "--to", "relay"),
    ("prune",),
    ("destroy", "--yes", "--data"),
)


@pytest.fixture
def attacked(untouched: Pipeline) -> Pipeline:
    """A database in which a role may create objects in the outbox's schema, and has functions of its own."""
    role = sql.Identifier(untouched.site.writer)
    with untouched.site.database.connect() as conn:
        conn.execute("CREATE TABLE public.proof (who text)")
        conn.execute("GRANT ALL ON public.proof TO PUBLIC")
        conn.execute(sql.SQL("GRANT CREATE, USAGE ON SCHEMA public TO {}").format(role))
    squat(untouched, ATTACK)
    return untouched


def squat(pipeline: Pipeline, statements: LiteralString) -> None:
    with pipeline.site.connect(pipeline.site.writer, PASSWORD) as conn:
        conn.execute(statements)


def provisioned(pipeline: Pipeline) -> None:
    """Create the outbox as the administrator, without the slot: nothing of it outlives the database."""
    with pipeline.site.admin() as conn:
        for part in provisioning.postgres_parts(conn, pipeline.site.definition):
            if part.kind == "table":
                part.make(part.look())


def refused(pipeline: Pipeline, blocked: str) -> None:
    """Every command refuses in one line, plan says so, and nothing of the other role was run."""
    pipeline.sql("TRUNCATE public.proof")
    for command in COMMANDS:
        answer = pipeline.run(*command)
        assert answer.code == ExitCode.REFUSED, f"{command}: {answer.code} {answer.out} {answer.err}"
        assert pipeline.site.writer in answer.err
        assert "which is not trusted" in answer.err
        assert answer.err.count("\n") == 1, answer.err
    pipeline.run("status", "--interval", "0.2", "--no-history")
    objects = pipeline.run("--json", "plan").document()["objects"]
    (table,) = [found for found in objects if found["kind"] == "table"]
    assert table["state"] == "blocked"
    assert blocked in table["why"]
    assert pipeline.sql("SELECT count(*) FROM public.proof") == [(0,)]


@pytest.mark.parametrize("kind", EARLY)
def test_a_squatted_outbox_is_refused(attacked: Pipeline, kind: str) -> None:
    squat(attacked, EARLY[kind])
    refused(attacked, "belongs to role")


@pytest.mark.parametrize("kind", LATE)
def test_a_squatted_name_beside_the_outbox_is_refused(attacked: Pipeline, kind: str) -> None:
    provisioned(attacked)
    squat(attacked, LATE[kind])
    refused(attacked, "belongs to role")


@pytest.mark.parametrize("kind", ON_OURS)
def test_code_of_another_role_on_our_table_is_refused(attacked: Pipeline, kind: str) -> None:
    provisioned(attacked)
    with attacked.site.database.connect() as conn:
        conn.execute(ON_OURS[kind])
    refused(attacked, "attack")


def test_functions_that_shadow_postgresqls_own_are_not_called(attacked: Pipeline) -> None:
    provisioned(attacked)
    squat(
        attacked,
        "CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO public.proof VALUES (current_user);"
        " RETURN pg_catalog.now(); END $$;",
    )
    with attacked.site.database.connect() as conn:
        name = sql.Identifier(attacked.site.database.name)
        conn.execute(sql.SQL("ALTER DATABASE {} SET search_path = public, pg_catalog").format(name))
    sent = attacked.run("send", "order", "1", "Placed", "{}")
    assert sent.code == ExitCode.OK, sent.err
    assert attacked.run("relay", "--init").code == ExitCode.OK
    attacked.run("relay", "--until-empty")
    assert attacked.sql("SELECT count(*) FROM public.proof") == [(0,)]


def test_triggers_of_trusted_owners_are_let_be(attacked: Pipeline) -> None:
    provisioned(attacked)
    with attacked.site.database.connect() as conn:
        conn.execute(
            "CREATE FUNCTION public.mine() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN INSERT INTO public.proof VALUES ('mine'); RETURN NEW; END $$"
        )
        conn.execute(
            "CREATE TRIGGER a BEFORE INSERT ON public.outbox FOR EACH ROW EXECUTE FUNCTION public.mine()"
        )
    assert attacked.run("send", "order", "1", "Placed", "{}").code == ExitCode.OK
    assert attacked.sql("SELECT who FROM public.proof") == [("mine",)]


def test_an_owner_whose_rights_the_session_has_is_trusted(attacked: Pipeline) -> None:
    """As a service's own role, which owns its tables and runs outboxctl itself."""
    definition = attacked.site.definition
    with attacked.site.database.connect() as conn:
        conn.execute(sql.SQL("GRANT ALL ON SCHEMA public TO {}").format(sql.Identifier(attacked.site.writer)))
    with attacked.site.connect(attacked.site.writer, PASSWORD) as conn:
        conn.execute(ROAD)
        assert trust.of_outbox(conn, definition.outbox.table) == []
    with psycopg.connect(attacked.site.database.conninfo) as conn:
        assert trust.of_outbox(conn, definition.outbox.table) != []


def test_a_squatted_inbox_is_refused(attacked: Pipeline) -> None:
    squat(attacked, "CREATE TABLE public.inbox_journal (action text, before uuid, detail text);")
    dsn = attacked.site.database.conninfo
    for command in (
        ("inbox", "init"),
        ("inbox", "status"),
        ("inbox", "forget", "--consumer", "c", "--reason", "r", "--since", "2026-01-01", "--yes"),
        ("dead-letters", "list"),
        ("dead-letters", "redrive"),
    ):
        answer = attacked.run(*command, "--dsn", dsn)
        assert answer.code == ExitCode.REFUSED, f"{command}: {answer.out} {answer.err}"
        assert "which is not trusted" in answer.err
    assert attacked.sql("SELECT count(*) FROM pg_class WHERE relname = 'inbox'") == [(0,)]


def test_an_audit_reads_no_inbox_of_a_stranger(attacked: Pipeline) -> None:
    provisioned(attacked)
    squat(attacked, "CREATE TABLE public.inbox (consumer text, event_id uuid, received_at timestamptz);")
    answer = attacked.run("audit", "--settle", "0", "--inbox", attacked.site.database.conninfo)
    assert answer.code == ExitCode.REFUSED, answer.out + answer.err
    assert "which is not trusted" in answer.err
