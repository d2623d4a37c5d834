"""What Kafka Connect's REST API answers, as values, and the few readings of it that need thought."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# A cause of these packages says that a socket broke; the one above it says whose.
_PLUMBING = ("java.net.", "java.io.", "java.nio.", "javax.net.")
_PASSWORD = re.compile(r"(password|secret|token)=[^&;,\s]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ConnectWorker:
    """The worker that answered."""

    version: str
    kafka_cluster_id: str


@dataclass(frozen=True, slots=True)
class Plugin:
    """A class that the worker can load. `kind` is source, sink, converter, transformation, ..."""

    class_name: str
    kind: str
    version: str


@dataclass(frozen=True, slots=True)
class FieldError:
    """What Connect's validation says against one property, in one line."""

    field: str
    message: str


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task. `trace` is the whole Java stack trace, empty unless it failed."""

    id: int
    state: str
    worker_id: str
    trace: str = field(default="", repr=False)

    @property
    def trace_line(self) -> str:
        """The one line of the trace that matters."""
        return trace_line(self.trace)


@dataclass(frozen=True, slots=True)
class ConnectorStatus:
    """A connector and its tasks. RUNNING proves nothing about events; it only says nobody gave up yet."""

    name: str
    state: str
    worker_id: str
    tasks: tuple[TaskStatus, ...]
    version: str = ""
    trace: str = field(default="", repr=False)

    @property
    def trace_line(self) -> str:
        """The one line that matters, of the connector's trace or of the first failed task's."""
        return trace_line(self.trace) or next((t.trace_line for t in self.tasks if t.trace), "")

    @property
    def failed(self) -> bool:
        """Whether the connector itself or any of its tasks is FAILED."""
        return "FAILED" in (self.state, *(task.state for task in self.tasks))

    @property
    def stopped(self) -> bool:
        """Whether it is STOPPED and no task is left, so that its offsets may be changed."""
        return self.state == "STOPPED" and not self.tasks


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """The position Connect has stored for a Debezium PostgreSQL connector. Positions are integers.

    `lsn_proc` is where Debezium resumes reading, `lsn_commit` the last commit it saw. A position is
    None where the stored value is missing or not a number (Connect accepts any value in a PATCH).
    """

    server: str  # Debezium's topic.prefix
    lsn: int | None
    lsn_proc: int | None
    lsn_commit: int | None
    message_type: str  # BEGIN, COMMIT, INSERT, MESSAGE, ...; empty when unknown
    snapshot: bool  # a snapshot was under way
    raw: Mapping[str, Any]

    @property
    def resume_at(self) -> int | None:
        """Where reading resumes: lsn_proc, else lsn."""
        return self.lsn if self.lsn_proc is None else self.lsn_proc


def trace_line(trace: str) -> str:
    """Find the line of a Java stack trace that names the cause.

    It is the innermost cause, except where that is only the broken socket: then the one above it,
    which names the host. Passwords in connection URLs are blanked. Empty for an empty trace.
    """
    causes = list(_causes(trace.splitlines()))
    while len(causes) > 1 and causes[-1].startswith(_PLUMBING):
        causes.pop()
    return _PASSWORD.sub(r"\1=***", _short(causes[-1])) if causes else ""


def _causes(lines: Iterable[str]) -> Iterable[str]:
    """Give each exception of a trace as one line, outermost first; a message may span lines."""
    cause: list[str] = []
    for line in lines:
        if line.startswith("Caused by: "):
            yield " ".join(cause)
            cause = [line.removeprefix("Caused by: ").strip()]
        elif line.strip() and not re.match(r"\s+(at |\.\.\. \d+ |Suppressed: )", line):
            cause.append(line.strip())
    if cause:
        yield " ".join(cause)


def _short(cause: str) -> str:
    """Drop the package of the exception's class: `a.b.C: text` becomes `C: text`."""
    name, separator, text = cause.partition(": ")
    return f"{name.rpartition('.')[2]}{separator}{text}" if " " not in name else cause


def worker(body: Mapping[str, Any]) -> ConnectWorker:
    """Read `GET /`."""
    return ConnectWorker(str(body.get("version", "")), str(body.get("kafka_cluster_id", "")))


def plugin(body: Mapping[str, Any]) -> Plugin:
    """Read one entry of `GET /connector-plugins`."""
    version = body.get("version")
    return Plugin(str(body["class"]), str(body.get("type", "")), "" if version is None else str(version))


def field_errors(body: Mapping[str, Any]) -> tuple[FieldError, ...]:
    """Read `PUT /connector-plugins/X/config/validate`: one entry per complaint, in Connect's order."""
    return tuple(
        FieldError(str(entry["value"].get("name", "")), " ".join(str(message).split()))
        for entry in body.get("configs", ())
        for message in dict.fromkeys(entry["value"].get("errors", ()))
    )


def status(body: Mapping[str, Any]) -> ConnectorStatus:
    """Read `GET /connectors/X/status`."""
    connector = body["connector"]
    tasks = (
        TaskStatus(int(t["id"]), str(t["state"]), str(t.get("worker_id", "")), str(t.get("trace") or ""))
        for t in body.get("tasks", ())
    )
    return ConnectorStatus(
        name=str(body["name"]),
        state=str(connector["state"]),
        worker_id=str(connector.get("worker_id", "")),
        tasks=tuple(sorted(tasks, key=lambda task: task.id)),
        version=str(connector.get("version") or ""),
        trace=str(connector.get("trace") or ""),
    )


def source_offset(body: Mapping[str, Any], server: str) -> SourceOffset | None:
    """Pick the offset of `server` (topic.prefix) from `GET /connectors/X/offsets`.

    Connect also lists partitions that nobody reads, such as one left by a PATCH with a wrong name.
    """
    entries: Sequence[Mapping[str, Any]] = body.get("offsets", ())
    for entry in entries:
        if (entry.get("partition") or {}).get("server") == server and entry.get("offset"):
            offset: Mapping[str, Any] = entry["offset"]
            return SourceOffset(
                server=server,
                lsn=_position(offset.get("lsn")),
                lsn_proc=_position(offset.get("lsn_proc")),
                lsn_commit=_position(offset.get("lsn_commit")),
                message_type=str(offset.get("messageType") or ""),
                snapshot=bool(offset.get("snapshot")) and offset.get("snapshot_completed") is not True,
                raw=offset,
            )
    return None


def _position(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
