"""Positions of the write-ahead log, in both spellings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_pipeline.errors import UsageError
from outbox_pipeline.servers import lsn


@pytest.mark.parametrize(
    ("text", "position"),
    [("0/0", 0), ("0/16B3748", 23803720), ("16/B374D848", 97500059720), ("FFFFFFFF/FFFFFFFF", 2**64 - 1)],
)
def test_a_position_is_read_and_written_as_postgresql_does(text: str, position: int) -> None:
    assert lsn.parse(text) == position
    assert lsn.text(position) == text


@given(st.integers(min_value=0, max_value=2**64 - 1))
def test_reading_undoes_writing(position: int) -> None:
    assert lsn.parse(lsn.text(position)) == position


@pytest.mark.parametrize("text", ["", "12", "0/", "/0", "0/123456789", "0x1/0", "0/G", "-1/0"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="0/16B3748"):
        lsn.parse(text)


@pytest.mark.parametrize("position", [-1, 2**64])
def test_a_number_outside_the_log_is_refused(position: int) -> None:
    with pytest.raises(UsageError):
        lsn.text(position)
