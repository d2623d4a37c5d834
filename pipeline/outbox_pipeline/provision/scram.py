"""Make and check SCRAM-SHA-256 verifiers, so that PostgreSQL never sees a password in clear.

A password in `CREATE ROLE … PASSWORD '…'` ends in server logs and in `pg_stat_statements`; a verifier
made on the client does not give it away. Format: `SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>`
(RFC 5803, RFC 7677; PostgreSQL docs, "Password Authentication").
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import stringprep
import unicodedata
from collections.abc import Callable

from outbox_connectors.definition import Secret

ITERATIONS = 4096  # PostgreSQL's own default
SALT_BYTES = 16

_PROHIBITED = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
    stringprep.in_table_a1,
)


def verifier(
    password: Secret,
    *,
    iterations: int = ITERATIONS,
    salt: Callable[[int], bytes] = secrets.token_bytes,
) -> str:
    """Compute the verifier that PostgreSQL stores for a password."""
    return _verifier(password, iterations, salt(SALT_BYTES))


def matches(password: Secret, stored: str) -> bool | None:
    """Tell whether a stored verifier was made from this password; None when it is no SCRAM verifier."""
    try:
        scheme, parameters, _ = stored.split("$")
        iterations, salt = parameters.split(":")
        if scheme != "SCRAM-SHA-256":
            return None
        expected = _verifier(password, int(iterations), base64.b64decode(salt, validate=True))
    except ValueError:
        return None
    return hmac.compare_digest(expected, stored)


def _verifier(password: Secret, iterations: int, salt: bytes) -> str:
    salted = hashlib.pbkdf2_hmac("sha256", saslprep(password.value).encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    return f"SCRAM-SHA-256${iterations}:{_base64(salt)}${_base64(stored_key)}:{_base64(server_key)}"


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def saslprep(text: str) -> str:
    """Normalise a password as SASLprep (RFC 4013) does.

    A text that SASLprep prohibits is returned as it is, which is what PostgreSQL and libpq do with it.
    """
    if text.isascii():
        return text
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character
        for character in text
        if not stringprep.in_table_b1(character)
    )
    normal = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    return normal if normal and _permitted(normal) else text


def _permitted(text: str) -> bool:
    if any(prohibited(character) for character in text for prohibited in _PROHIBITED):
        return False
    right_to_left = [stringprep.in_table_d1(character) for character in text]
    if any(right_to_left):
        return right_to_left[0] and right_to_left[-1] and not any(map(stringprep.in_table_d2, text))
    return True
