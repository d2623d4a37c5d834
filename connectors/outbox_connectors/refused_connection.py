"""Turn libpq's error for a failed connection into one line with a remedy."""

from __future__ import annotations

import re
from typing import Final

from outbox_connectors.errors import AccessDenied, LoginFailed, Unreachable

# (part of libpq's or the server's message, remedy). The first match wins. `{dsn}` is the setting that holds
# the connection string.
_REMEDIES: Final = (
    ("no encryption", "the server wants TLS: add sslmode=require (or verify-full with sslrootcert)"),
    ("server does not support SSL", "the server speaks no TLS: use sslmode=disable or give it a certificate"),
    ("certificate verify failed", "point sslrootcert to the authority that signed the server's certificate"),
    ("root certificate file", "point sslrootcert to an existing file, or lower sslmode"),
    ("no pg_hba.conf entry", "add a line for this user, database and address to pg_hba.conf and reload"),
    ("password authentication failed", "check the user and password ({dsn}, PGUSER, PGPASSWORD)"),
    ("no password supplied", "give a password in {dsn}, PGPASSWORD or a .pgpass file"),
    ("permission denied for database", "GRANT CONNECT ON DATABASE to this role"),
    ("role ", "create the role, or give another user in {dsn} or PGUSER"),
    ("database ", "create the database, or correct {database}"),
    ("too many clients", "close sessions or raise max_connections"),
    ("remaining connection slots", "close sessions or raise max_connections"),
    ("starting up", "wait until the server has started"),
    ("shutting down", "wait until the server is back"),
    ("cannot be resolved", "check the host ({dsn}, PGHOST)"),
    ("could not translate host name", "check the host ({dsn}, PGHOST)"),
    ("refused", "check host and port ({dsn}, PGHOST, PGPORT) and that the server runs"),
    ("timeout", "check host, port and firewall ({dsn}, PGHOST, PGPORT)"),
)
_REJECTIONS: Final = (
    ("authentication failed", LoginFailed),
    ("no password supplied", LoginFailed),
    ("permission denied for ", AccessDenied),
)
# psycopg's own message; it contains None if the host came from PGHOST.
_UNRESOLVED: Final = re.compile(r"failed to resolve host (?:None|'[^']*'): (?:\[Errno -?\d+\] )?([^;]*)")


def unreachable(message: str, where: str, *, dsn: str, database: str, otherwise: str = "") -> Unreachable:
    """Build the error for a message of libpq, which often has one line for each address it tried.

    `dsn` and `database` name the settings that a remedy refers to; `otherwise` is the remedy for an
    unknown message.
    """
    lines = dict.fromkeys(" ".join(line.split()) for line in message.splitlines() if line.strip())
    problem = _UNRESOLVED.sub(r"the host's name cannot be resolved: \1", "; ".join(lines))
    remedy = next((advice for part, advice in _REMEDIES if part in problem), otherwise)
    return _kind(problem)(problem, where=where, remedy=remedy.format(dsn=dsn, database=database))


def _kind(problem: str) -> type[Unreachable]:
    """Tell by libpq's words, its only interface for this, whether the server answered and rejected us."""
    kinds = (kind for part, kind in _REJECTIONS if part in problem)
    return next(kinds, Unreachable)
