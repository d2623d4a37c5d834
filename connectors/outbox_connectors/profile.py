"""The connector: every property we set, rendered for the versions found."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from outbox_connectors.definition import Definition

_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:[.-]([A-Za-z]+)(\d*))?.*")
_QUALIFIERS = ("snapshot", "alpha", "beta", "cr", "final")


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A Debezium version. `3.7.0.Beta1` comes before `3.7.0.Final`, an absent qualifier is Final."""

    major: int
    minor: int
    micro: int = 0
    qualifier: tuple[int, int] = (_QUALIFIERS.index("final"), 0)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `3.7.0.Final`, `3.7`, `3.8.0-SNAPSHOT`. Raises ValueError."""
        match = _VERSION.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"not a Debezium version: {text!r}")
        major, minor, micro, word, number = match.groups()
        rank = _QUALIFIERS.index(word.lower()) if word and word.lower() in _QUALIFIERS else 4
        return cls(int(major), int(minor), int(micro or 0), (rank, int(number or 0)))

    def __str__(self) -> str:
        rank, number = self.qualifier
        word = "SNAPSHOT" if rank == 0 else _QUALIFIERS[rank].upper() if rank == 3 else None
        word = word or _QUALIFIERS[rank].capitalize()
        return f"{self.major}.{self.minor}.{self.micro}.{word}{number or ''}"


def render(definition: Definition, *, debezium: Version, postgres_major: int) -> dict[str, str]:
    """Render the complete connector configuration."""
    raise NotImplementedError
