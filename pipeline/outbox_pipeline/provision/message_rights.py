"""Who may write logical messages: those who tick, and not every role that can connect.

A logical message reaches the connector whatever wrote it. One of 1.6 MB under the heartbeat's prefix fails
its task at every restart where the payload is bytea (RecordTooLargeException: the converter writes the
content out, else it writes a placeholder), one of 200 MB under any prefix takes the memory of its
worker (measured on Debezium 3.7.0.Final). PostgreSQL lets PUBLIC execute `pg_logical_emit_message`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow, class_row

from outbox_connectors.checks import Finding, Severity
from outbox_connectors.definition import Definition
from outbox_pipeline import sql as statements
from outbox_pipeline.servers import slots
from outbox_pipeline.servers.admin_rights import Rights
from outbox_pipeline.servers.plan import FieldChange, ObjectPlan, State, text_of

KIND = "function"
NAME = "pg_logical_emit_message"
REASON = "lets any role that can connect stop the connector for good with one large logical message"
AFFECTED = "heartbeat queries and outboxes of others in this database that call it need a grant of their own"


@dataclass(frozen=True, slots=True)
class LiveMessageRights:
    """Who may execute the function. `ours`: whether we may change that."""

    public: bool
    ours: bool
    lacking: list[str]  # of the roles that need it: those who have no grant of their own
    ticking: list[str]  # roles that tick now, as PUBLIC


def wanted(definition: Definition, admin: str) -> tuple[str, ...]:
    """List the roles that write logical messages: the administrator's, who ticks, or the connector itself."""
    tickers = definition.watch.roles or definition.outbox.writers
    own = () if definition.watch.ticker is not None else (definition.postgres.connector.user,)
    return tuple(dict.fromkeys((admin, *tickers, *own)))


def read(conn: psycopg.Connection[TupleRow], definition: Definition) -> LiveMessageRights:
    """Read who may execute the function. One query, no lock."""
    values = {"roles": list(wanted(definition, conn.info.user)), "ticker": slots.TICKER_APPLICATION}
    with conn.cursor(row_factory=class_row(LiveMessageRights)) as cursor:
        found = cursor.execute(statements.get("read_message_rights"), values).fetchone()
    assert found is not None  # a SELECT without FROM
    return found


def plan(live: LiveMessageRights, definition: Definition, rights: Rights) -> ObjectPlan:
    """Compare the rights on the function with the definition. Pure.

    Takes nothing from PUBLIC while a role ticks that would lose the right by it, and nothing at all where
    that is not ours to change (Amazon RDS): then a warning says so, and `apply` goes on.
    """
    public = live.public and definition.postgres.restrict_messages
    unnamed = sorted(set(live.ticking) - set(wanted(definition, rights.role)))
    if not public and (live.public or not live.lacking):
        return ObjectPlan(KIND, NAME, State.PRESENT)
    if public and unnamed:
        warning = (
            f"PUBLIC may execute {NAME}, and {', '.join(unnamed)} ticks by that right: add the role to "
            "watch.roles, then apply takes it from PUBLIC"
        )
        return ObjectPlan(KIND, NAME, State.PRESENT, warnings=(warning,))
    grants = [
        sql.SQL(statements.get("grant_messages", rights.server_major)).format(role=sql.Identifier(role))
        for role in live.lacking
    ]
    revoke = [sql.SQL(statements.get("revoke_messages", rights.server_major)).format()] if public else []
    found = (*grants, *revoke)
    if not live.ours:
        who = ", ".join([*(["PUBLIC may"] if public else []), *(f"{r} may not" for r in live.lacking)])
        warning = f"execute {NAME}: {who}; {rights.role} cannot change that, its owner can: {_bare(found)}"
        return ObjectPlan(KIND, NAME, State.PRESENT, warnings=(warning,))
    changes = [FieldChange(f"EXECUTE for {role}", "missing", "granted") for role in live.lacking]
    if public:
        changes.append(FieldChange("EXECUTE for PUBLIC", "granted", "revoked"))
    shown = text_of(found)
    if public:
        shown = f"-- {NAME} {REASON};\n-- {AFFECTED} (postgres.restrict_messages: false leaves it)\n{shown}"
    return ObjectPlan(
        KIND, NAME, State.DIFFERENT, changes=tuple(changes), statement=shown, sql=found, why=REASON * public
    )


def findings(live: LiveMessageRights) -> Iterator[Finding]:
    """Say what is dangerous about the rights as they are, for `doctor`. Pure."""
    if live.public:
        yield Finding(
            "messages-public",
            Severity.WARNING,
            f"PUBLIC may execute {NAME}, which {REASON}",
            "run outboxctl apply as the owner of the function (a superuser), without "
            f"postgres.restrict_messages: false; {AFFECTED}",
            "measured on Debezium 3.7.0.Final",
        )


def _bare(found: tuple[sql.Composed, ...]) -> str:
    return "; ".join(" ".join(one.as_string(None).split("\n", 1)[1].split()) for one in found)
