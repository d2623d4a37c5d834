"""Logical messages: records in the write-ahead log that no table holds.

The ticks that keep an idle slot moving and the canaries that prove the way to Kafka are such
messages. They leave no row behind and need no right beyond CONNECT.
"""

from __future__ import annotations

from typing import Any

import psycopg

from outbox_pipeline import sql
from outbox_pipeline.servers import lsn


def emit(
    conn: psycopg.Connection[Any], prefix: str, content: str = "", *, transactional: bool = False
) -> int:
    """Write a logical message and return its position in the write-ahead log, in bytes.

    Not transactional (the default): decoded whether or not the surrounding transaction commits, and
    without waiting for it. On PostgreSQL 17 and later it is flushed before this returns; before that
    the WAL writer flushes it, after `wal_writer_delay` (200 ms) at the latest three times over.
    Transactional: decoded when the caller's transaction commits. Never commits, never retries.
    """
    query = sql.get("emit_message", conn.info.server_version // 10000)
    parameters = {"transactional": transactional, "prefix": prefix, "content": content}
    with psycopg.Cursor(conn) as cursor:
        row = cursor.execute(query, parameters).fetchone()
    assert row is not None  # a SELECT of one function call
    return lsn.parse(row[0])
