"""The roles: the connector's own with the least it needs, and INSERT for those who write.

The connector needs LOGIN and REPLICATION, CONNECT on the database, USAGE on the schema and SELECT on
the outbox. A role that has more is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow, class_row

from outbox_connectors.definition import Definition
from outbox_pipeline import sql as statements
from outbox_pipeline.provision import scram
from outbox_pipeline.provision.tables import identifier
from outbox_pipeline.servers.admin_rights import Rights
from outbox_pipeline.servers.plan import FieldChange, ObjectPlan, State, blocked, text_of

KIND = "role"
GRANTS = "grants"


@dataclass(frozen=True, slots=True)
class LiveRole:
    """A role as the server describes it. `verifier` is None where we may not look."""

    login: bool
    replication: bool
    superuser: bool
    createrole: bool
    createdb: bool
    bypassrls: bool
    rds_replication: bool
    ours: bool
    expired: bool | None
    password_matches: bool | None = None


@dataclass(frozen=True, slots=True)
class LiveGrants:
    """What a role may do; None where the object does not exist yet."""

    connect: bool | None
    usage: bool | None
    select: bool | None
    insert: bool | None
    owns_database: bool
    owns_schema: bool
    owns_table: bool


def read_role(conn: psycopg.Connection[TupleRow], name: str) -> LiveRole | None:
    """Read a role's attributes; None when there is none. One query."""
    with conn.cursor(row_factory=class_row(LiveRole)) as cursor:
        return cursor.execute(statements.get("read_role"), {"name": name}).fetchone()


def read_verifier(conn: psycopg.Connection[TupleRow], name: str) -> str | None:
    """Read a role's stored password verifier, empty where it has none. Needs a superuser."""
    row = conn.execute(statements.get("read_password_verifier"), {"name": name}).fetchone()
    return None if row is None else row[0] or ""


def read_grants(conn: psycopg.Connection[TupleRow], role: str, definition: Definition) -> LiveGrants | None:
    """Read what a role may do with the outbox; None when there is no such role. One query."""
    table = definition.outbox.table
    values = {"role": role, "schema": table.schema, "table": table.name}
    with conn.cursor(row_factory=class_row(LiveGrants)) as cursor:
        return cursor.execute(statements.get("read_grants"), values).fetchone()


def plan_role(
    live: LiveRole | None, stored: str | None, definition: Definition, rights: Rights
) -> ObjectPlan:
    """Compare the connector's role with the definition. Pure but for the salt of a new verifier.

    `stored` is the verifier found on the server, None where it was not looked at.
    """
    login = definition.postgres.connector
    role = sql.Identifier(login.user)
    if live is None:
        return _plan_missing_role(definition, rights)
    changes: list[FieldChange] = []
    found: list[sql.Composed] = []
    if not live.login or not (live.replication or live.rds_replication):
        have = [name for name, on in (("LOGIN", live.login), ("REPLICATION", live.replication)) if on]
        changes.append(FieldChange("attributes", " ".join(have) or "none", "LOGIN REPLICATION"))
        text = "grant_rds_replication" if rights.on_rds and live.login else "alter_role_login"
        found.append(sql.SQL(statements.get(text)).format(role=role))
    shown = text_of(found)
    if stored is not None and login.role_password and scram.matches(login.role_password, stored) is not True:
        changes.append(FieldChange("password", "another" if stored else "none", "role_password"))
        verifier = sql.Literal(scram.verifier(login.role_password))
        found.append(sql.SQL(statements.get("alter_role_password")).format(role=role, verifier=verifier))
        shown += f"\n-- {role.as_string(None)} gets another password, sent as a SCRAM-SHA-256 verifier"
    warnings = tuple(_warnings(live, login.user))
    if not found:
        return ObjectPlan(KIND, login.user, State.PRESENT, warnings=warnings)
    if not (rights.superuser or (rights.may_create_replication_role and live.ours)):
        return blocked(
            KIND,
            login.user,
            f"lacks {changes[0].want}, and {rights.role} may not alter it",
            f"ALTER ROLE {_quoted(login.user)} LOGIN REPLICATION, as a superuser",
            changes=changes,
        )
    return ObjectPlan(
        KIND,
        login.user,
        State.DIFFERENT,
        changes=tuple(changes),
        statement=shown.strip(),
        sql=tuple(found),
        warnings=warnings,
    )


def _plan_missing_role(definition: Definition, rights: Rights) -> ObjectPlan:
    login = definition.postgres.connector
    role = sql.Identifier(login.user)
    shown = text_of([sql.SQL(statements.get("create_role_without_password")).format(role=role)])
    if not login.role_password:
        return blocked(
            KIND,
            login.user,
            "does not exist, and postgres.connector.role_password is empty",
            f"set role_password, or CREATE ROLE {_quoted(login.user)} LOGIN REPLICATION with a password",
        )
    if not rights.may_create_replication_role:
        return blocked(
            KIND,
            login.user,
            f"does not exist, and {rights.role} may not create a role with REPLICATION",
            f"run as a superuser: CREATE ROLE {_quoted(login.user)} LOGIN REPLICATION, and give it a password"
            + (
                f"; or ALTER ROLE {_quoted(rights.role)} CREATEROLE REPLICATION"
                if rights.server_major >= 16
                else ""
            ),
        )
    verifier = sql.Literal(scram.verifier(login.role_password))
    if rights.on_rds:
        create = sql.SQL(statements.get("create_role_on_rds")).format(role=role, verifier=verifier)
        grant = sql.SQL(statements.get("grant_rds_replication")).format(role=role)
        shown = (
            f"-- {login.user} is created with a SCRAM-SHA-256 verifier of its password\n{text_of([grant])}"
        )
        return ObjectPlan(KIND, login.user, State.MISSING, statement=shown, sql=(create, grant))
    found = (sql.SQL(statements.get("create_role")).format(role=role, verifier=verifier),)
    return ObjectPlan(KIND, login.user, State.MISSING, statement=shown, sql=found)


def _warnings(live: LiveRole, user: str) -> Iterator[str]:
    more = {
        "SUPERUSER": live.superuser,
        "CREATEROLE": live.createrole,
        "CREATEDB": live.createdb,
        "BYPASSRLS": live.bypassrls,
    }
    names = [name for name, on in more.items() if on]
    if names:
        yield f"{user} has {', '.join(names)}, which the connector does not need"
    if live.expired:
        yield f"the password of {user} has expired (VALID UNTIL): the connector cannot log in"


def plan_connector_grants(live: LiveGrants | None, definition: Definition, rights: Rights) -> ObjectPlan:
    """Compare the connector's grants with the definition. Pure."""
    return _plan_grants(definition.postgres.connector.user, live, "SELECT", definition, rights)


def plan_writer_grants(
    writer: str, live: LiveGrants | None, definition: Definition, rights: Rights
) -> ObjectPlan:
    """Compare a writer's grants with the definition. Pure."""
    if live is None:
        return blocked(
            GRANTS,
            writer,
            "no such role, and the application's role is not ours to create",
            f"run CREATE ROLE {_quoted(writer)} LOGIN, or remove it from outbox.writers",
        )
    return _plan_grants(writer, live, "INSERT", definition, rights)


def _plan_grants(
    role: str, live: LiveGrants | None, privilege: str, definition: Definition, rights: Rights
) -> ObjectPlan:
    table, database = definition.outbox.table, definition.postgres.connector.database
    names = {
        "role": sql.Identifier(role),
        "database": sql.Identifier(database),
        "schema": sql.Identifier(table.schema),
        "table": identifier(table),
    }
    on_table = {"SELECT": "grant_select", "INSERT": "grant_insert"}[privilege]
    wanted = (
        (f"CONNECT on {database}", "connect", "grant_connect", "owns_database"),
        (f"USAGE on schema {table.schema}", "usage", "grant_usage", "owns_schema"),
        (f"{privilege} on {table}", privilege.lower(), on_table, "owns_table"),
    )
    missing = [
        (field, sql.SQL(statements.get(name)).format(**names), owner)
        for field, right, name, owner in wanted
        if live is None or getattr(live, right) is not True
    ]
    if not missing:
        return ObjectPlan(GRANTS, role, State.PRESENT)
    changes = tuple(FieldChange(field, "missing", "granted") for field, _, _ in missing)
    refused = [
        (field, statement)
        for field, statement, owner in missing
        if live is not None and not rights.superuser and not getattr(live, owner)
    ]
    if refused:
        return blocked(
            GRANTS,
            role,
            f"lacks {', '.join(field for field, _ in refused)}, and {rights.role} may not grant that",
            "; ".join(_bare(statement) for _, statement in refused),
            changes=changes,
        )
    found = tuple(statement for _, statement, _ in missing)
    return ObjectPlan(GRANTS, role, State.MISSING, changes=changes, statement=text_of(found), sql=found)


def _bare(statement: sql.Composed) -> str:
    """Write a statement without the comment in its first line."""
    return " ".join(statement.as_string(None).split("\n", 1)[1].split())


def _quoted(name: str) -> str:
    return sql.Identifier(name).as_string(None)
