"""Which stored offsets and open transactions hold up a restart."""

from __future__ import annotations

import pytest

from outbox_connectors.profile import Version
from outbox_pipeline.connect.client import SourceOffset
from outbox_pipeline.connect.restart_guard import OpenTransaction, reason_to_wait, risky_types, step_back

V36, V370, V371 = (Version.parse(text) for text in ("3.6.3.Final", "3.7.0.Final", "3.7.1.Final"))
WRITER = OpenTransaction(4711, None, "shop_app", "import", 12.3)
PREPARED = OpenTransaction(None, "two-phase-1", "shop_app", "", 3600)


def offset(kind: str) -> SourceOffset:
    return SourceOffset("shop", 0x110, 0x108, 0x108, kind, False, {})


@pytest.mark.parametrize(
    ("kind", "debezium", "transactions", "held_up"),
    [
        ("INSERT", V36, (WRITER,), False),
        ("MESSAGE", V36, (WRITER,), False),
        ("COMMIT", V36, (WRITER,), True),
        ("COMMIT", V36, (), False),
        ("COMMIT", V370, (WRITER,), False),
        ("COMMIT", V371, (WRITER,), False),
        ("COMMIT", None, (WRITER,), True),
        ("BEGIN", V36, (), True),
        ("BEGIN", V370, (), True),
        ("BEGIN", V371, (WRITER,), True),
        ("", V370, (WRITER,), False),
    ],
)
def test_a_restart_waits_only_where_rows_could_be_lost(
    kind: str, debezium: Version | None, transactions: tuple[OpenTransaction, ...], held_up: bool
) -> None:
    assert bool(reason_to_wait(offset(kind), debezium, transactions)) is held_up


def test_without_an_offset_nothing_can_be_lost() -> None:
    assert reason_to_wait(None, V36, (WRITER,)) == ""


def test_a_prerelease_is_not_trusted() -> None:
    assert "COMMIT" in risky_types(Version.parse("3.7.0.Alpha1"))


def test_the_oldest_transaction_is_named() -> None:
    reason = reason_to_wait(offset("COMMIT"), V36, (PREPARED, WRITER))
    assert "prepared transaction 'two-phase-1' (user shop_app, open for 3600 s) and 1 more" in reason
    reason = reason_to_wait(offset("COMMIT"), V36, (WRITER,))
    assert reason.endswith("pid 4711 (user shop_app, application import, open for 12 s)")


def test_one_byte_back_no_record_begins() -> None:
    position = step_back(offset("BEGIN"))
    assert position == 0x107
    assert position % 8 != 0
