"""Whatever happened to a definition file, the answer is one line, never a traceback and never a secret."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from outbox_connectors.errors import DefinitionError
from outbox_connectors.loading import loads

WHOLE = (Path(__file__).parents[3] / "connectors/outbox.yaml").read_text("utf-8")
ENVIRON = {"OUTBOX_CDC_PASSWORD": "hunter2-and-more"}
SCRAPS = (
    *("", "\t", "  ", "- ", ": ", "{", "}", "[", "]", "&a ", "*a", "!x ", "${", "${X}", "#", "'", '"', "|\n"),
    *("\n", "null", "7", "yes", "\x00", "\ud800", "\ufeff", "---\n", "? ", "<<: ", "%", "@", "é" * 70),
)
CUTS = st.tuples(st.integers(0, len(WHOLE)), st.integers(0, 30), st.sampled_from(SCRAPS))


def answer(text: str) -> None:
    try:
        loads(text, source="outbox.yaml", environ=ENVIRON)
    except DefinitionError as error:
        message = str(error)
        assert "\n" not in message
        assert message.startswith("outbox.yaml")
        assert "hunter2" not in message


@settings(max_examples=300, deadline=None)
@given(st.lists(CUTS, min_size=1, max_size=3))
def test_a_damaged_file_gets_one_line(cuts: list[tuple[int, int, str]]) -> None:
    text = WHOLE
    for at, length, scrap in cuts:
        text = text[:at] + scrap + text[at + length :]
    answer(text)


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_any_text_gets_one_line(text: str) -> None:
    answer(text)
