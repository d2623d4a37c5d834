"""SCRAM verifiers: the published example, what is normalised, what is told apart."""

from __future__ import annotations

import base64
import hmac

import pytest

from outbox_connectors.definition import Secret
from outbox_pipeline.provision import scram

# RFC 7677, section 3: user "user", password "pencil", salt W22ZaJ0SNY7soEsUEjb6gQ==, 4096 iterations.
# The keys follow from its ClientProof and ServerSignature.
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
PENCIL = (
    "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$"
    "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
)


def test_the_example_of_rfc_7677() -> None:
    assert scram.verifier(Secret("pencil"), salt=lambda _: SALT) == PENCIL


def test_the_server_signature_of_rfc_7677_follows_from_the_server_key() -> None:
    server_key = base64.b64decode(PENCIL.rpartition(":")[2])
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    message = f"n=user,r=rOprNGfwEbeRWgbNEkqO,r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r={nonce}"
    signature = hmac.digest(server_key, message.encode(), "sha256")
    assert base64.b64encode(signature) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_every_verifier_has_a_salt_of_its_own() -> None:
    assert scram.verifier(Secret("pencil")) != scram.verifier(Secret("pencil"))


@pytest.mark.parametrize(
    ("password", "stored", "answer"),
    [
        ("pencil", PENCIL, True),
        ("Pencil", PENCIL, False),
        ("pencil", "md5" + "0" * 32, None),
        ("pencil", "", None),
        ("pencil", "SCRAM-SHA-256$4096:not base64!$a:b", None),
        ("pencil", PENCIL.replace("SHA-256", "SHA-512"), None),
    ],
)
def test_matches(password: str, stored: str, answer: bool | None) -> None:
    assert scram.matches(Secret(password), stored) is answer


@pytest.mark.parametrize(
    ("given", "prepared"),
    [
        ("user", "user"),
        ("USER", "USER"),
        ("I\u00adX", "IX"),  # RFC 4013: a soft hyphen maps to nothing
        ("\u00aa", "a"),  # compatibility normalisation
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),  # a non-ASCII space is a space
        ("\u0007", "\u0007"),  # prohibited: used as it is, as PostgreSQL does
        ("\u0627\u0031", "\u0627\u0031"),  # broken bidirectional text: as it is
        ("\u00adé", "é"),
        ("é", "é"),
        ("e\u0301", "é"),
    ],
)
def test_saslprep(given: str, prepared: str) -> None:
    assert scram.saslprep(given) == prepared
