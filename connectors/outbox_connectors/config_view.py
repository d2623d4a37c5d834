"""The input of the checks: a connector's configuration, the versions, the outbox table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from outbox_connectors.masking import holds_reference, is_secret
from outbox_connectors.profile import Version

ROUTER = "io.debezium.transforms.outbox.EventRouter"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of the live table. `sql_type` is its type as `format_type` prints it."""

    name: str
    sql_type: str
    nullable: bool
    default: str = ""


@dataclass(frozen=True, slots=True)
class CapturedTable:
    """The live outbox table: the properties that the checks need."""

    columns: tuple[TableColumn, ...]
    has_row_trigger: bool = True
    partitioned: bool = False
    publishes_via_root: bool = True

    def column(self, name: str) -> TableColumn | None:
        """Find a column by name."""
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True, slots=True)
class View:
    """A connector's configuration with versions and table; None where these are not known."""

    config: Mapping[str, str]
    debezium: Version | None
    postgres_major: int | None
    table: CapturedTable | None

    def get(self, key: str, default: str = "") -> str:
        """Return the value of a property without surrounding blanks; empty if it is a `${provider:...}`."""
        value = self.config.get(key, default).strip()
        return "" if holds_reference(value) else value

    def number(self, key: str, default: int) -> int:
        """Return a property as an integer; the default if absent or no number (Connect rejects that)."""
        try:
            return int(self.get(key) or default)
        except ValueError:
            return default

    def true(self, key: str, *, default: bool = False) -> bool:
        """Tell whether a property is true."""
        return self.get(key, str(default)).lower() == "true"

    def names(self, key: str) -> tuple[str, ...]:
        """Return the entries of a comma-separated list."""
        return tuple(name.strip() for name in self.get(key).split(",") if name.strip())

    def older_than(self, version: Version) -> bool:
        """Tell whether the Debezium version is known and older than `version`."""
        return self.debezium is not None and self.debezium < version

    @property
    def references(self) -> tuple[str, ...]:
        """Name the properties whose value is a `${provider:...}` reference, except secrets."""
        return tuple(key for key, text in self.config.items() if holds_reference(text) and not is_secret(key))

    @property
    def routers(self) -> tuple[str, ...]:
        """Return the aliases of the transformations that are an EventRouter."""
        listed = self.names("transforms")
        return tuple(name for name in listed if self.get(f"transforms.{name}.type") == ROUTER)

    @property
    def heartbeats(self) -> bool:
        """Tell whether the connector sends heartbeats of its own."""
        return self.number("heartbeat.interval.ms", 0) > 0


def matches(pattern: str, text: str) -> bool | None:
    """Tell whether a Java regular expression matches the whole text; None if Python cannot compile it."""
    try:
        # Java writes named groups without the P; nothing else of what is used in names differs.
        return re.fullmatch(pattern.replace("(?<", "(?P<"), text) is not None
    except re.error:
        return None
