"""Connect to PostgreSQL, and say in one line why not."""

from __future__ import annotations

import os
from collections.abc import Mapping

import psycopg
from psycopg import conninfo as libpq
from psycopg.rows import TupleRow

from outbox_connectors.definition import Secret
from outbox_connectors.errors import DefinitionError, Unreachable

CONNECT_TIMEOUT_SECONDS = 5

# (part of libpq's or the server's message, what to do). The first match wins.
_REMEDIES = (
    ("no encryption", "the server wants TLS: add sslmode=require (or verify-full with sslrootcert)"),
    ("server does not support SSL", "the server speaks no TLS: use sslmode=disable or give it a certificate"),
    ("certificate verify failed", "point sslrootcert to the authority that signed the server's certificate"),
    ("root certificate file", "point sslrootcert to an existing file, or lower sslmode"),
    ("no pg_hba.conf entry", "add a line for this user, database and address to pg_hba.conf and reload"),
    ("password authentication failed", "check the user and password (postgres.admin, PGUSER, PGPASSWORD)"),
    ("no password supplied", "give a password in postgres.admin, PGPASSWORD or a .pgpass file"),
    ("permission denied for database", "GRANT CONNECT ON DATABASE to this role"),
    ("role ", "create the role, or give another user in postgres.admin or PGUSER"),
    ("database ", "create the database, or correct postgres.connector.database"),
    ("too many clients", "close sessions or raise max_connections"),
    ("remaining connection slots", "close sessions or raise max_connections"),
    ("starting up", "wait until the server has started"),
    ("shutting down", "wait until the server is back"),
    ("could not translate host name", "check the host (postgres.admin, PGHOST)"),
    ("refused", "check host and port (postgres.admin, PGHOST, PGPORT) and that the server runs"),
    ("timeout", "check host, port and firewall (postgres.admin, PGHOST, PGPORT)"),
)


def connect(
    conninfo: Secret, *, application_name: str, dbname: str | None = None, replication: bool = False
) -> psycopg.Connection[TupleRow]:
    """Open a session in autocommit mode.

    An empty `conninfo` means libpq's own PG* environment. `dbname` overrides the database of both.
    `replication` opens a replication session of that database, which takes simple queries only.
    Waits CONNECT_TIMEOUT_SECONDS per address unless the conninfo or PGCONNECT_TIMEOUT says otherwise.
    Raises DefinitionError for a conninfo libpq cannot read (its text is never repeated: it may hold
    a password) and Unreachable for everything else.
    """
    settings = _settings(conninfo, os.environ)
    settings["application_name"] = application_name
    if dbname is not None:
        settings["dbname"] = dbname
    if replication:
        settings["replication"] = "database"
    try:
        return psycopg.connect(libpq.make_conninfo(**settings), autocommit=True)
    except psycopg.OperationalError as error:
        raise _unreachable(str(error), _place(settings, os.environ)) from error


def server_major(conn: psycopg.Connection[TupleRow]) -> int:
    """Tell the server's major version, without a query."""
    return conn.info.server_version // 10000


def _settings(conninfo: Secret, environ: Mapping[str, str]) -> dict[str, str]:
    try:
        parsed = libpq.conninfo_to_dict(conninfo.value)
    except psycopg.ProgrammingError:
        raise DefinitionError(
            "the connection string is not one libpq can read",
            where="postgres.admin",
            remedy="write host=… port=… user=… or postgresql://user@host:port/database",
        ) from None
    settings = {name: str(value) for name, value in parsed.items() if value is not None}
    if "PGCONNECT_TIMEOUT" not in environ:
        settings.setdefault("connect_timeout", str(CONNECT_TIMEOUT_SECONDS))
    return settings


def _place(settings: Mapping[str, str], environ: Mapping[str, str]) -> str:
    host = settings.get("host") or environ.get("PGHOST", "local socket")
    port = settings.get("port") or environ.get("PGPORT", "5432")
    return f"PostgreSQL at {host}:{port}"


def _unreachable(message: str, where: str) -> Unreachable:
    """Turn libpq's message, often one line per address tried, into one line with a remedy."""
    lines = dict.fromkeys(" ".join(line.split()) for line in message.splitlines() if line.strip())
    problem = "; ".join(lines)
    remedy = next((advice for part, advice in _REMEDIES if part in problem), "")
    return Unreachable(problem, where=where, remedy=remedy)
