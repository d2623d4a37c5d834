"""Whose process holds a slot: the connector's own, somebody else's, or one of which that cannot be seen.

What decides is the role that the live connector logs in as, not the one of a definition: a connector that
others registered logs in as their role. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address

from outbox_connectors.masking import holds_reference

DEBEZIUM = "Debezium"  # application_name of its sessions: "Debezium Streaming" and the like
_LOOK = "SELECT usename, application_name, client_addr, backend_start FROM pg_stat_activity WHERE pid = $1"
_APPLICATION = "driver.ApplicationName"  # passed on to the JDBC driver


class Whose(StrEnum):
    """Who holds a slot."""

    CONNECTOR = "connector"
    OTHER = "other"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Process:
    """A process that holds a slot, as pg_stat_activity shows it. None or empty: no right to see it."""

    pid: int | None
    user: str | None
    application: str | None
    client: str | None = None

    def __str__(self) -> str:
        parts = [f"process {self.pid}" + (f" of user {self.user}" if self.user else "")]
        parts += [f"application {self.application!r}"] if self.application else []
        parts += [f"from {self.client}"] if self.client else []
        return ", ".join(parts)

    @property
    def look(self) -> str:
        """The statement that shows more of it."""
        return _LOOK.replace("$1", str(self.pid))


def whose(
    process: Process,
    config: Mapping[str, str] | None,
    *,
    expected_user: str = "",
    worker: str = "",
    running: bool = True,
) -> Whose:
    """Tell whose process it is. `config` is the live connector's configuration, None where it is not known.

    `expected_user` is asked only where there is none. `worker` is the address of the connector's task
    (host:port); it counts only where the task does not run: addresses differ behind NAT and proxies too.
    A process whose application nobody may see is taken for the connector's.
    """
    if not process.application:
        return Whose.CONNECTOR
    if config is None:
        debezium = process.application.startswith(DEBEZIUM)
        return Whose.CONNECTOR if debezium and process.user in (None, expected_user) else Whose.UNKNOWN
    user = config.get("database.user", "")
    known = bool(user) and not holds_reference(user)
    if process.user is not None and known and process.user != user:
        return Whose.OTHER
    if process.application != config.get(_APPLICATION) and not process.application.startswith(DEBEZIUM):
        return Whose.UNKNOWN
    if process.user is None or not known:
        return Whose.CONNECTOR if running and process.user is None else Whose.UNKNOWN
    return Whose.UNKNOWN if not running and _elsewhere(process.client, worker) else Whose.CONNECTOR


def _elsewhere(client: str | None, worker: str) -> bool:
    """Tell whether two addresses are known to be of two machines. A host's name is never resolved."""
    try:
        here, there = ip_address(client or ""), ip_address(worker.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False
    return here != there and not here.is_loopback and not there.is_loopback
