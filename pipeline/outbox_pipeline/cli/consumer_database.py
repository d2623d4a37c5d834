"""The session of a command on a consumer's own database."""

from __future__ import annotations

import psycopg
from psycopg.rows import TupleRow

from outbox_connectors.definition import Secret
from outbox_consumers import sql
from outbox_consumers.inbox import job_tables as jobs
from outbox_pipeline.servers import postgres, trust


def connect(dsn: str, command: str, table: str) -> psycopg.Connection[TupleRow]:
    """Open a session, through a pooler or not, for an inbox whose tables run nobody else's code.

    Names without a schema are found by the session's own search_path, as consumers find them. Raises Refused
    where a table belongs to a role that is not trusted or would run code of one, else as `postgres.connect`.
    """
    conn = postgres.connect(Secret(dsn), application_name=f"outboxctl {command}", pooler=True)
    try:
        names = [*sql.tables(table).values(), jobs.job(table), jobs.worker(table)]
        trust.refuse(trust.untrusted(conn, [name.as_string(None) for name in names]))
    except BaseException:
        conn.close()
        raise
    return conn
