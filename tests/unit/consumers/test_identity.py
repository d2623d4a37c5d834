"""Which 16 bytes an event is known by: stable, told apart by source, never shared by what names nothing."""

from __future__ import annotations

from uuid import UUID

import pytest
from confluent_kafka import Message

from outbox_connectors.record_headers import Headers
from outbox_consumers import Event
from outbox_consumers.errors import UsageError
from outbox_consumers.identity import (
    DEAD_LETTER_ID_HEADER,
    IdentityRules,
    identify,
    packed_uuid,
    position_id,
    says_nothing,
    scoped_id,
    type_of,
    unscoped_id,
)

ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
PLACE = ("orders", 1, 7)
NOTHING = [b"", b" ", b"\t\n", b"\0", b"null", b"NULL", b" Null ", b"None", b"undefined", b"nil"]
NIL_UUIDS = [str(UUID(int=0)).encode(), UUID(int=0).hex.encode(), b"{%s}" % str(UUID(int=0)).encode()]
# Texts that are no UUID although they look like one.
ALMOST = [
    b"0" * 15 + b"42" + b"0" * 15,  # a number with leading zeros, as wide as a UUID
    b"d41d8cd98f00b204e9800998ecf8427e",  # an MD5: of version 11 if it were one
    b"{%s}" % str(ID).encode(),
    b"urn:uuid:%s" % str(ID).encode(),
    b'"%s"' % str(ID).encode(),
    str(ID).encode()[:-1],
    str(ID).encode() + b"0",
    b"zz" * 16,
    b"0" * 31,
]


def id_of(
    *headers: tuple[str, bytes | None], topic: str = "orders", naming: IdentityRules | None = None
) -> bytes:
    return identify(list(headers), (topic, 1, 7), naming or IdentityRules()).packed


@pytest.mark.parametrize("text", [str(ID), ID.hex, str(ID).upper(), ID.hex.upper()])
def test_a_uuid_is_itself_in_every_scope(text: str) -> None:
    assert packed_uuid(text.encode()) == ID.bytes
    assert id_of(("id", text.encode()), topic="a") == id_of(("id", text.encode()), topic="b") == ID.bytes
    assert unscoped_id(text.encode()) == ID.bytes


@pytest.mark.parametrize("text", ALMOST)
def test_another_text_belongs_to_its_source(text: bytes) -> None:
    assert packed_uuid(text) == b""
    found = id_of(("id", text))
    assert found == id_of(("id", text)) == scoped_id("orders", text)
    assert found != id_of(("id", text), topic="refunds")
    assert UUID(bytes=found).version == 5
    assert found != unscoped_id(text)


def test_a_scope_joins_topics_and_parts_them() -> None:
    seventeen = ("id", b"17")
    one = IdentityRules(scope="shop")
    assert id_of(seventeen, naming=one) == id_of(seventeen, topic="refunds", naming=one)
    some = IdentityRules(scope={"orders": "shop", "payments": "shop"})
    assert id_of(seventeen, naming=some) == id_of(seventeen, topic="payments", naming=some)
    assert id_of(seventeen, topic="refunds", naming=some) == scoped_id("refunds", b"17")


def test_scope_and_text_cannot_be_taken_for_another_pair() -> None:
    assert scoped_id("a", b"bc") != scoped_id("ab", b"c")
    assert scoped_id("a", b"\xff") != scoped_id("a", b"\\xff")  # the unscoped form took these for one


@pytest.mark.parametrize("text", [*NOTHING, *NIL_UUIDS])
def test_a_text_that_identifies_nothing_is_no_id(text: bytes) -> None:
    assert says_nothing(text)
    found = identify([("id", text)], PLACE, IdentityRules())
    assert (found.packed, found.own, found.text) == (position_id(*PLACE), False, b"")


@pytest.mark.parametrize("text", [b"0", b"1", b"nullable", b"-", b"{}x", b"NaN1", *ALMOST])
def test_a_text_that_is_short_or_odd_is_an_id(text: bytes) -> None:
    assert not says_nothing(text)
    assert identify([("id", text)], PLACE, IdentityRules()).own


@pytest.mark.parametrize("text", [b"\xff\xfe", b"a\0b", b"x" * 100_000, b"\xed\xa0\x80"])
def test_no_text_of_an_id_raises(text: bytes) -> None:
    assert len(id_of(("id", text))) == 16
    assert len(unscoped_id(text)) == 16


def test_the_first_of_two_ids_counts() -> None:
    assert id_of(("id", b"1"), ("id", b"2")) == scoped_id("orders", b"1")
    assert id_of(("id", None), ("id", b"2")) == position_id(*PLACE)


def test_the_derived_ids_never_change() -> None:
    """They are stored: another namespace would make every old event look new."""
    assert str(UUID(bytes=unscoped_id(b"order-17"))) == "71852283-104d-5257-a4dc-e23da0a8a44f"
    assert str(UUID(bytes=position_id("t", 1, 7))) == "96a74113-bb07-5b22-9a48-5ab6b7216929"
    assert str(UUID(bytes=scoped_id("orders", b"order-17"))) == "a50272b6-4a14-583b-80de-748d963e3066"


def test_a_dead_letter_keeps_its_id_on_another_topic() -> None:
    kept = (DEAD_LETTER_ID_HEADER, str(ID).encode())
    assert id_of(("id", b"17"), kept, topic="billing.dead") == ID.bytes
    assert id_of(kept, topic="billing.dead") == ID.bytes
    other = UUID("01890a5d-ac96-774b-bcce-b302099a8058")
    assert id_of(("id", str(other).encode()), kept) == other.bytes  # a UUID needs no help
    assert id_of(("id", b"17"), (DEAD_LETTER_ID_HEADER, NIL_UUIDS[0])) == scoped_id("orders", b"17")


def test_other_headers_can_carry_id_and_type() -> None:
    naming = IdentityRules("ce_id", "ce_type")
    headers: Headers = [("id", b"1"), ("event_type", b"A"), ("ce_type", b"B"), ("ce_id", str(ID).encode())]
    event = Event.of(Message("orders", 0, 0, b"k", b"{}", headers), naming)
    assert (event.id, event.type, event.has_own_id) == (ID, "B", True)


@pytest.mark.parametrize("kind", [None, b"", b" ", b"\0"])
def test_a_type_that_says_nothing_is_none(kind: bytes | None) -> None:
    assert type_of([("event_type", kind)], IdentityRules()) is None


def test_an_event_that_was_kept_keeps_id_and_type() -> None:
    event = Event.kept(Message("orders", 0, 0, b"k", b"{}", [("id", b"17")]), ID.bytes, "Placed")
    assert (event.id, event.type, event.has_own_id) == (ID, "Placed", True)


@pytest.mark.parametrize("name", ["", "a\0b", None, 1])
def test_a_name_that_no_header_has_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="type_header"):
        IdentityRules(type_header=name)


@pytest.mark.parametrize("scope", ["", "a\0b", {"orders": ""}, {"orders": None}])
def test_an_empty_scope_is_refused(scope: str) -> None:
    with pytest.raises(UsageError, match="id_scope"):
        IdentityRules(scope=scope)
