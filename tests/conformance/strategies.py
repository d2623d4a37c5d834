"""Outbox rows of every form that PostgreSQL accepts, for hypothesis."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from conformance.rows import AGGREGATE_TYPES, KEYS, TEXTS, TIMES
from outbox_connectors import record
from outbox_connectors.record import Row

Made = TypeVar("Made")

HUGE = 300_000  # characters; a limit of the record itself is `rows.largest`

# What PostgreSQL's text cannot hold: NUL and lone surrogates.
CHARACTERS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
BLANKS = st.sampled_from(("", "", "", " ", "\n", "\t \r\n"))


def texts(least: int, most_bytes: int) -> st.SearchStrategy[str]:
    """Any text that has room: every character may take four bytes."""
    return st.text(CHARACTERS, min_size=least, max_size=min(40, most_bytes // 4))


def _numbers() -> st.SearchStrategy[str]:
    """Write numbers as JSON allows: signs, exponents, fractions with more digits than a float has."""
    integers = st.integers(-(10**40), 10**40).map(str)
    fractions = st.builds("{}.{:0>{}}".format, integers, st.integers(0, 10**20), st.integers(1, 25))
    exponents = st.builds(
        "{}{}{}{}".format,
        st.one_of(integers, fractions),
        st.sampled_from("eE"),
        st.sampled_from(("", "+", "-")),
        st.integers(0, 30),
    )
    return st.one_of(
        st.integers(-9, 9).map(str), integers, fractions, exponents, st.sampled_from(("-0", "-0.0", "0e0"))
    )


def _strings() -> st.SearchStrategy[str]:
    """Write strings as JSON allows: characters as they are, or as escapes."""
    return st.builds(json.dumps, st.text(CHARACTERS, max_size=30), ensure_ascii=st.booleans())


def _within(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def array(blank: str, members: list[str]) -> str:
        return f"[{blank}{(blank + ',' + blank).join(members)}{blank}]"

    def mapping(blank: str, members: list[tuple[str, str]]) -> str:
        return f"{{{blank}{(',' + blank).join(f'{name}{blank}:{value}' for name, value in members)}{blank}}}"

    names = st.one_of(_strings(), st.sampled_from(('"a"', '"b"')))  # so that some come twice
    return st.one_of(
        st.builds(array, BLANKS, st.lists(inner, max_size=4)),
        st.builds(mapping, BLANKS, st.lists(st.tuples(names, inner), max_size=4)),
    )


JSON = st.recursive(
    st.one_of(_numbers(), _strings(), st.sampled_from(("true", "false", "null"))), _within, max_leaves=8
)
HUGE_JSON = st.builds(
    lambda part, size: json.dumps(part * (size // max(1, len(part)))),
    st.text(CHARACTERS, min_size=1, max_size=5).filter(lambda part: len(json.dumps(part)) < 40),
    st.integers(1000, HUGE // 10),
)
BYTES = st.binary(max_size=200)
HUGE_BYTES = st.builds(
    lambda part, times: part * times, st.binary(min_size=1, max_size=9), st.integers(1000, HUGE // 10)
)


def drawn(strategy: st.SearchStrategy[Made], count: int, from_seed: int) -> Sequence[Made]:
    """Draw values, the same ones for a seed. They go into rows of one batch, so none is tried on its own."""
    found: list[Made] = []

    @seed(from_seed)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value: Made) -> None:
        found.append(value)

    collect()
    return found


def rows(count: int, from_seed: int, *, binary: bool) -> list[Row]:
    """Make rows to insert, the same ones for a seed: hypothesis draws the values, which are then combined."""
    rng = random.Random(f"{from_seed} combined")  # not the ids that `rows.rows` makes of the seed
    json_texts = drawn(JSON, 400, from_seed)
    payloads: Sequence[str | bytes]
    if binary:
        payloads = [*drawn(BYTES, 200, from_seed), *drawn(HUGE_BYTES, 10, from_seed)]
    else:
        payloads = [*json_texts, *drawn(HUGE_JSON, 10, from_seed)]
    keys = [*KEYS, *drawn(texts(1, record.MAX_AGGREGATE_ID), 100, from_seed), *map(str, range(100))]
    types = drawn(texts(1, record.MAX_EVENT_TYPE), 50, from_seed)
    traces = [None, *TEXTS, *drawn(texts(0, record.MAX_TRACE_TEXT), 100, from_seed)]
    moments = [*TIMES, *(f"{at.isoformat()}+00" for at in drawn(st.datetimes(), 100, from_seed))]
    versions = drawn(st.integers(record.MIN_EVENT_VERSION, record.MAX_EVENT_VERSION), 50, from_seed)
    return [
        Row(
            id=str(uuid.UUID(int=rng.getrandbits(128))),
            aggregate_type=AGGREGATE_TYPES[at % len(AGGREGATE_TYPES)],
            aggregate_id=rng.choice(keys),
            event_type=rng.choice(types),
            event_version=str(rng.choice(versions)),
            payload=payloads[at] if at < len(payloads) else rng.choice((None, *rng.choices(payloads, k=9))),
            occurred_at=moments[at] if at < len(moments) else rng.choice(moments),
            traceparent=rng.choice(traces),
            correlation_id=rng.choice(traces),
            causation_id=rng.choice(traces),
            headers=rng.choice((None, rng.choice(json_texts))),
        )
        for at in range(count)
    ]
