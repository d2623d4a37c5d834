"""One function per fault: it takes `Facts` and returns a `WatchFinding` or None."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from outbox_connectors.findings import Severity
from outbox_pipeline.servers.shell_commands import psql
from outbox_pipeline.watch.facts import Facts
from outbox_pipeline.watch.formatting import duration, size, span
from outbox_pipeline.watch.sample import Holder
from outbox_pipeline.watch.verdict import WatchFinding, rank

_PREPARED = "SELECT * FROM pg_prepared_xacts WHERE gid = $1"
_SESSION = "SELECT * FROM pg_stat_activity WHERE pid = $1"

FAR_SECONDS = 90 * 86_400.0  # an end that is further away is not mentioned

Rule: TypeAlias = Callable[[Facts], WatchFinding | None]


def urgency(facts: Facts, base: Severity, standing: float = 0.0) -> Severity:
    """Raise a severity where events are about to be lost, or delivery has stood still for long."""
    left, limits = facts.left, facts.thresholds
    soonest = left.earliest if left else None
    # A rate seen for seconds says little about the next hour: a checkpoint or a vacuum writes in bursts.
    sight = left.history_seconds * limits.sight if left else 0.0
    if soonest is not None and soonest < min(limits.critical_left, sight):
        return Severity.CRITICAL
    if base is Severity.WARNING and standing >= limits.stalled_critical:
        return Severity.CRITICAL
    if soonest is not None and soonest < limits.warn_left:
        return max(base, Severity.WARNING, key=rank)
    return base


def time_left(facts: Facts) -> str:
    """Word how long is left, if that is known and near: `; the slot is invalidated in ...`."""
    left = facts.left
    if left is None or (left.earliest is None and left.expected is None):
        return ""
    if min(seconds for seconds in (left.earliest, left.expected) if seconds is not None) > FAR_SECONDS:
        return ""
    what = "the slot is invalidated" if left.end.value == "invalidation" else "the disk is full"
    basis = (
        f" (from {duration(left.history_seconds)} of history)" if left.history_seconds < 86_400 * 0.9 else ""
    )
    return f"; {what} in {span(left.earliest, left.expected)}{basis}"


def since(seconds: float) -> str:
    """Word a duration of at least a second, to end a sentence with: ` for 3 min`."""
    return f" (for {duration(seconds)})" if seconds >= 1 else ""


def waiting(facts: Facts) -> str:
    """Word how much WAL the consumer has not confirmed: `; 3.1 MB of WAL wait`."""
    if facts.unconfirmed is None:
        return ""
    rate = f", growing by {size(facts.wal_rate)}/s" if facts.wal_rate and facts.wal_rate >= 1024 else ""
    return f"; {size(facts.unconfirmed)} of WAL wait{rate}"


def quoted(text: str) -> str:
    """Quote a value for a SQL statement that a person will paste."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """Quote a name for a SQL statement that a person will paste, if it needs it."""
    plain = (
        name.isascii() and name.replace("_", "a").isalnum() and name == name.lower() and not name[0].isdigit()
    )
    return name if plain else '"' + name.replace('"', '""') + '"'


def table(name: str) -> str:
    """Quote `schema.table` for a SQL statement that a person will paste."""
    schema, _, relation = name.partition(".")
    return f"{identifier(schema)}.{identifier(relation)}"


def look_at(holder: Holder) -> str:
    """Print a command that shows whose open transaction it is, and say what ends it.

    The command only reads. Ending the transaction is left to whoever runs it: a rollback loses the work of
    a session, and a prepared transaction may be part of a commit that is already decided elsewhere.
    """
    if holder.kind == "prepared":
        return (
            f"{psql(_PREPARED.replace('$1', quoted(holder.gid or '')))}  # who prepared it, and when; its "
            "transaction manager must end it, as decided there: rolling it back by hand undoes its part of a "
            "commit that others have already made"
        )
    return (
        f"{psql(_SESSION.replace('$1', str(holder.pid)))}  # whose transaction it is; it ends when that "
        f"program commits, rolls back or disconnects. pg_terminate_backend({holder.pid}) rolls it back and "
        "ends the session: agree on it with its owner first"
    )
