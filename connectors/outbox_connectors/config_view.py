"""What the checks look at: a connector's configuration, the versions, the outbox table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from outbox_connectors.masking import holds_reference, is_secret
from outbox_connectors.profile import Version

ROUTER = "io.debezium.transforms.outbox.EventRouter"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column as PostgreSQL has it. `sql_type` is what `format_type` prints."""

    name: str
    sql_type: str
    nullable: bool
    default: str = ""


@dataclass(frozen=True, slots=True)
class CapturedTable:
    """The live outbox table, as far as the checks need it."""

    columns: tuple[TableColumn, ...]
    has_row_trigger: bool = True
    partitioned: bool = False
    publishes_via_root: bool = True

    def column(self, name: str) -> TableColumn | None:
        """Find a column by name."""
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True, slots=True)
class View:
    """A configuration with what is known around it."""

    config: Mapping[str, str]
    debezium: Version | None
    postgres_major: int | None
    table: CapturedTable | None

    def get(self, key: str, default: str = "") -> str:
        """The value of a property, without blanks around it; empty where it is a reference."""
        value = self.config.get(key, default).strip()
        return "" if holds_reference(value) else value

    def number(self, key: str, default: int) -> int:
        """A property as a whole number; the default also where it is none (Connect refuses that itself)."""
        try:
            return int(self.get(key) or default)
        except ValueError:
            return default

    def true(self, key: str, *, default: bool = False) -> bool:
        """Tell whether a property is true."""
        return self.get(key, str(default)).lower() == "true"

    def names(self, key: str) -> tuple[str, ...]:
        """A comma-separated list."""
        return tuple(name.strip() for name in self.get(key).split(",") if name.strip())

    def older_than(self, version: Version) -> bool:
        """Tell whether Debezium is known to be older."""
        return self.debezium is not None and self.debezium < version

    @property
    def references(self) -> tuple[str, ...]:
        """The properties whose value only the workers know, those that hold secrets left out."""
        return tuple(key for key, text in self.config.items() if holds_reference(text) and not is_secret(key))

    @property
    def routers(self) -> tuple[str, ...]:
        """The aliases of the transformations that are an EventRouter."""
        listed = self.names("transforms")
        return tuple(name for name in listed if self.get(f"transforms.{name}.type") == ROUTER)

    @property
    def heartbeats(self) -> bool:
        """Tell whether the connector sends heartbeats of its own."""
        return self.number("heartbeat.interval.ms", 0) > 0


def matches(pattern: str, text: str) -> bool | None:
    """Match a Java regular expression as a whole. None: it does not compile here, so nobody knows."""
    try:
        # Java writes named groups without the P; nothing else of what is used in names differs.
        return re.fullmatch(pattern.replace("(?<", "(?P<"), text) is not None
    except re.error:
        return None
