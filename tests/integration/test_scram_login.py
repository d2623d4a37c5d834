"""Verifiers made here against the server's own: the same password logs in, whatever is in it."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from fix_stack import Stack
from outbox_connectors.definition import Secret
from outbox_pipeline.provision import scram

pytestmark = pytest.mark.stack

PASSWORDS = [
    "plain",
    "quote ' and \\ and $ and \" and %",
    "wörd",
    "e\u0301",  # decomposed
    "I\u00adX",  # soft hyphen
    "a\u00a0b",  # no-break space
    "\u2168 \u00aa",  # compatibility characters
    "пароль",
    "密码",
    "كلمة",
    "\u0627\u0031",  # prohibited by the rules for bidirectional text
    "\u0007bell",
    "emoji \U0001f511",  # unassigned in Unicode 3.2
    "x" * 300,
]


@pytest.fixture
def role(postgres: Stack, pipeline_name: str, own_roles: Callable[[Stack, str], None]) -> str:
    own_roles(postgres, pipeline_name)
    with psycopg.connect(postgres.conninfo(), autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(pipeline_name)))
    return pipeline_name


@pytest.mark.parametrize("password", PASSWORDS)
def test_a_verifier_of_ours_lets_its_password_in(postgres: Stack, role: str, password: str) -> None:
    verifier = scram.verifier(Secret(password))
    with psycopg.connect(postgres.conninfo(), autocommit=True) as conn:
        conn.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(role), verifier))
    psycopg.connect(make_conninfo(postgres.conninfo(), user=role, password=password)).close()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(make_conninfo(postgres.conninfo(), user=role, password=password + "x"))


@pytest.mark.parametrize("password", PASSWORDS)
def test_a_verifier_of_the_server_matches_its_password(postgres: Stack, role: str, password: str) -> None:
    with psycopg.connect(postgres.conninfo(), autocommit=True) as conn:
        conn.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(role), password))
        row = conn.execute("SELECT rolpassword FROM pg_authid WHERE rolname = %s", (role,)).fetchone()
    assert row is not None
    assert scram.matches(Secret(password), row[0]) is True
    assert scram.matches(Secret(password + "x"), row[0]) is False
