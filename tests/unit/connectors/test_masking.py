"""A literal secret is hidden, a reference to one is not."""

from __future__ import annotations

import pytest

from outbox_connectors.masking import is_literal_secret, shown


@pytest.mark.parametrize(
    ("key", "value", "printed"),
    [
        ("database.password", "x", "***"),
        ("database.password", "${env:X}", "${env:X}"),
        ("database.password", "${env:X}x", "***"),
        ("database.password", "${X:-x}", "***"),
        ("database.password", "", ""),
        ("producer.override.sasl.jaas.config", "... password='x';", "***"),
        ("producer.override.ssl.keystore.key", "-----BEGIN", "***"),
        ("transforms.outbox.table.field.event.key", "aggregate_id", "aggregate_id"),
        ("database.sslkey", "/key.pem", "/key.pem"),
        ("database.user", "x", "x"),
    ],
)
def test_masking(key: str, value: str, printed: str) -> None:
    assert shown(key, value) == printed
    assert is_literal_secret(key, value) is (printed == "***")
