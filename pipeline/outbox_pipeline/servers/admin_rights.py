"""What the administrating role may do, read before anything is tried."""

from __future__ import annotations

from dataclasses import dataclass, replace

import psycopg
from psycopg.rows import TupleRow, class_row

from outbox_pipeline import sql as statements
from outbox_pipeline.servers.postgres import server_major


@dataclass(frozen=True, slots=True)
class Rights:
    """The attributes and rights of the role that provisions."""

    role: str
    superuser: bool
    createrole: bool
    replication: bool
    create_in_database: bool
    owns_database: bool
    schema_exists: bool
    create_in_schema: bool
    owns_schema: bool
    rds_replication: bool | None = None  # membership; None: this is not Amazon RDS
    server_major: int = 0

    @property
    def on_rds(self) -> bool:
        """Tell whether replication is a membership here, because no customer's role gets the attribute."""
        return self.rds_replication is not None and not self.superuser

    @property
    def may_replicate(self) -> bool:
        """Tell whether the role may create and drop replication slots."""
        return self.superuser or self.replication or self.rds_replication is True

    @property
    def may_create_replication_role(self) -> bool:
        """PostgreSQL 16 lets CREATEROLE pass on attributes it has itself; before, only superusers may."""
        if self.on_rds:
            return self.createrole
        return self.superuser or (self.server_major >= 16 and self.createrole and self.replication)


def read(conn: psycopg.Connection[TupleRow], schema: str) -> Rights:
    """Read the rights of the current role. One query, no lock."""
    with conn.cursor(row_factory=class_row(Rights)) as cursor:
        found = cursor.execute(statements.get("read_rights"), {"schema": schema}).fetchone()
    assert found is not None
    return replace(found, server_major=server_major(conn))
