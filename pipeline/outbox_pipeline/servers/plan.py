"""What a plan is made of: objects, their state, and what would be run. Pure values, no I/O.

missing     apply creates it
different   apply changes it, without dropping or narrowing anything
blocked     apply cannot or may not; `why` says the reason and `remedy` what a person can do
present     nothing to do
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from psycopg import sql

from outbox_connectors.errors import ExitCode


class State(StrEnum):
    """How an object of the definition stands on the live system."""

    PRESENT = "present"
    MISSING = "missing"
    DIFFERENT = "different"
    BLOCKED = "blocked"


class ChangeKind(StrEnum):
    """What a change is about, for code that has to tell one from another."""

    OTHER = "other"
    MISSING_COLUMN = "missing_column"
    MISSING_PARTITION = "missing_partition"
    PARTITION_PARAMETERS = "partition_parameters"  # of a partition that is made with them


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field that is not as the definition wants it. `field` is for people, `kind` for code.

    `subject` names the column or partition of a change that has a kind.
    """

    field: str
    have: str
    want: str
    kind: ChangeKind = ChangeKind.OTHER
    subject: str = ""


@dataclass(frozen=True, slots=True)
class ObjectPlan:
    """One object: how it stands, what differs, and what apply would run for it.

    `statement` is for people (SQL or JSON, never with a secret in it); `sql` is what is executed.
    """

    kind: str
    name: str
    state: State
    changes: tuple[FieldChange, ...] = ()
    statement: str = ""
    why: str = ""
    remedy: str = ""
    warnings: tuple[str, ...] = ()
    unseen: bool = False  # blocked because nobody could look
    guarded: bool = False  # blocked because a change would replace what works and is not ours
    sql: tuple[sql.Composed, ...] = field(default=(), repr=False)

    def document(self) -> dict[str, Any]:
        """Show it as the JSON of `outboxctl plan --json`."""
        return {
            "kind": self.kind,
            "name": self.name,
            "state": self.state.value,
            "changes": [{"field": c.field, "have": c.have, "want": c.want} for c in self.changes],
            "statement": self.statement,
            "why": self.why,
            "remedy": self.remedy,
            "warnings": list(self.warnings),
            "unseen": self.unseen,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """All objects of a pipeline, in the order in which apply takes them."""

    objects: tuple[ObjectPlan, ...]

    @property
    def differences(self) -> int:
        """Count the objects that are not as the definition wants them."""
        return sum(planned.state is not State.PRESENT for planned in self.objects)

    @property
    def exit_code(self) -> ExitCode:
        """0 nothing differs, 6 something could not be looked at, 3 otherwise."""
        if any(planned.unseen for planned in self.objects):
            return ExitCode.UNREACHABLE
        return ExitCode.DIFFERENT if self.differences else ExitCode.OK

    def document(self) -> dict[str, Any]:
        """Show it as the JSON of `outboxctl plan --json`."""
        return {
            "objects": [planned.document() for planned in self.objects],
            "differences": self.differences,
        }


def blocked(
    kind: str, name: str, why: str, remedy: str, *, changes: Iterable[FieldChange] = (), unseen: bool = False
) -> ObjectPlan:
    """Plan an object that apply must leave alone."""
    return ObjectPlan(
        kind, name, State.BLOCKED, changes=tuple(changes), why=why, remedy=remedy, unseen=unseen
    )


def text_of(statements: Sequence[sql.Composed]) -> str:
    """Write statements as a script that psql takes."""
    return "\n".join(f"{statement.as_string(None).strip()};" for statement in statements)
