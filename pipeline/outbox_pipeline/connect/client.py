"""Kafka Connect's REST API as verbs: what a worker can do, what a connector is and does, and its offsets.

Every call has a time-out. Rebalances (409), starting workers (503) and the seconds in which a new
connector is not yet known to every worker (404) are waited out here, so a caller sees either the
answer or one line saying why there is none. No text of an error holds a credential.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self
from urllib.parse import quote

from outbox_connectors.definition import Connect
from outbox_connectors.profile import Version
from outbox_pipeline.connect import answers
from outbox_pipeline.connect.answers import (
    ConnectorStatus,
    ConnectWorker,
    FieldError,
    Plugin,
    SourceOffset,
    TaskStatus,
)
from outbox_pipeline.connect.configuration import explained
from outbox_pipeline.connect.transport import HttpAnswer, Transport, growing_delays
from outbox_pipeline.errors import Failed

__all__ = [
    "ConnectClient",
    "ConnectWorker",
    "ConnectorStatus",
    "FieldError",
    "Plugin",
    "SourceOffset",
    "TaskStatus",
]

DEBEZIUM_POSTGRES = "io.debezium.connector.postgresql.PostgresConnector"
TIMEOUT_SECONDS = 30.0  # for an answer to a question
CHANGE_SECONDS = 100.0  # validation asks the database; the worker itself gives up after 90 s
PATIENCE_SECONDS = 60.0  # how long a rebalance may take
VISIBLE_SECONDS = 15.0  # how long a change may take to reach every worker


class ConnectClient:
    """One Kafka Connect cluster, through any of its workers. Use it as a context manager, or `close` it."""

    def __init__(
        self,
        connect: Connect,
        *,
        timeout: float = TIMEOUT_SECONDS,
        patience: float = PATIENCE_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._http = Transport(connect, timeout=timeout, patience=patience, sleep=sleep, clock=clock)
        self._sleep, self._clock = sleep, clock

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the worker."""
        self._http.close()

    @property
    def where(self) -> str:
        """Name the cluster for messages, without credentials."""
        return self._http.where

    # The worker

    def worker(self) -> ConnectWorker:
        """Ask who answers."""
        return answers.worker(self._http.send("GET", "/").body)

    def plugins(self) -> tuple[Plugin, ...]:
        """List every class the worker can load: connectors, transformations, predicates, converters."""
        answer = self._http.send("GET", "/connector-plugins", params={"connectorsOnly": "false"})
        return tuple(answers.plugin(entry) for entry in answer.body)

    def debezium_version(self) -> Version | None:
        """Tell the newest version of Debezium's PostgreSQL connector on the worker, None if it has none."""
        versions = (p.version for p in self.plugins() if p.class_name == DEBEZIUM_POSTGRES and p.version)
        return max((Version.parse(text) for text in versions), default=None)

    def names(self) -> tuple[str, ...]:
        """Name the connectors, in alphabetical order."""
        return tuple(sorted(self._http.send("GET", "/connectors").body))

    def statuses(self) -> tuple[ConnectorStatus, ...]:
        """Read the state of every connector, in alphabetical order, with one request."""
        body = self._http.send("GET", "/connectors", params={"expand": "status"}).body
        return tuple(answers.status(body[name]["status"]) for name in sorted(body))

    # One connector

    def config(self, name: str) -> dict[str, str] | None:
        """Read a connector's stored configuration (placeholders unresolved), None if there is no such one."""
        answer = self._http.send("GET", f"{_path(name)}/config")
        if answer.status == 404:
            return None
        return {str(key): "" if value is None else str(value) for key, value in answer.body.items()}

    def create(self, name: str, config: Mapping[str, str], initial_state: str = "RUNNING") -> None:
        """Create a connector in `initial_state` (RUNNING, PAUSED, STOPPED; Kafka 3.7 and later).

        Raises Failed when it exists already or Connect refuses the configuration.
        """
        body = {"name": name, "config": dict(config), "initial_state": initial_state}
        self._accepted(name, self._http.send("POST", "/connectors", body=body, timeout=CHANGE_SECONDS))
        self._until(lambda: self.config(name) is not None, f"connector {name} was created but is not visible")

    def put_config(self, name: str, config: Mapping[str, str]) -> bool:
        """Create a connector or replace its whole configuration; True when it was created.

        The task restarts only if the configuration really changed. A STOPPED connector stays so.
        Raises Failed when Connect refuses the configuration; the old one then stays in force.
        """
        answer = self._http.send("PUT", f"{_path(name)}/config", body=dict(config), timeout=CHANGE_SECONDS)
        self._accepted(name, answer)
        self._until(lambda: self.config(name) is not None, f"connector {name} was created but is not visible")
        return answer.status == 201

    def validate(self, config: Mapping[str, str]) -> tuple[FieldError, ...]:
        """Let Connect check a configuration. It logs in to the database, and it overlooks much.

        No error here does not make a working connector: a missing slot, publication or table, a
        role without rights and most mistakes in transformations pass (measured on Debezium
        3.7.0.Final with Kafka Connect 4.3.1).
        """
        class_name = config.get("connector.class", "")
        if not class_name:
            return (FieldError("connector.class", "is missing"),)
        body = {"name": "validation", **config}
        path = f"/connector-plugins/{quote(class_name, safe='')}/config/validate"
        try:
            answer = self._http.send("PUT", path, body=body, timeout=CHANGE_SECONDS)
        except Failed as error:
            if class_name in error.problem:
                return (FieldError("connector.class", error.problem),)
            raise
        if answer.status >= 400:
            return (FieldError("connector.class", answer.message),)
        found = answers.field_errors(answer.body)
        return tuple(FieldError(one.field, explained(one.message, config)) for one in found)

    def status(self, name: str) -> ConnectorStatus | None:
        """Read the state of a connector and its tasks, None if there is no such connector.

        Waits for the status of a connector that was just created: Connect knows its configuration
        some time before it has a status.
        """
        deadline, delays = self._clock() + VISIBLE_SECONDS, growing_delays()
        while True:
            answer = self._http.send("GET", f"{_path(name)}/status")
            if answer.status != 404:
                return answers.status(answer.body)
            if self.config(name) is None:
                return None
            if self._clock() >= deadline:
                return ConnectorStatus(name=name, state="UNASSIGNED", worker_id="", tasks=())
            self._sleep(next(delays))

    def pause(self, name: str) -> None:
        """Pause and wait until it is PAUSED. The replication connection stays open, WAL is kept."""
        self._known(name, "PUT", "/pause")
        self._until_state(name, lambda status: status.state == "PAUSED", "PAUSED")

    def resume(self, name: str) -> None:
        """Ask a paused or stopped connector to run, and wait until it is neither; not for its task."""
        self._known(name, "PUT", "/resume")
        self._until_state(name, lambda status: status.state not in ("PAUSED", "STOPPED"), "RUNNING")

    def stop(self, name: str) -> None:
        """Stop and wait until no task is left. The slot becomes inactive and keeps WAL."""
        self._known(name, "PUT", "/stop")
        self._until_state(name, lambda status: status.stopped, "STOPPED")

    def restart(self, name: str, only_failed: bool = False) -> None:
        """Restart the connector and its tasks, or only what has FAILED; does nothing to a STOPPED one.

        Does not wait for the tasks.
        """
        params = {"includeTasks": "true", "onlyFailed": "true" if only_failed else "false"}
        self._known(name, "POST", "/restart", params=params)

    def delete(self, name: str) -> None:
        """Delete a connector and wait until it is gone. Its slot, its topics and its offsets stay."""
        self._known(name, "DELETE", "")
        # The configuration goes first: a moment later the status may still say UNASSIGNED.
        self._until(lambda: self.status(name) is None, f"connector {name} was deleted but is still visible")

    def absent(self, name: str) -> Failed:
        """Make the error that says there is no such connector, and which ones there are."""
        there = ", ".join(self.names()) or "none"
        return Failed(f"there is no connector {name}", where=self.where, remedy=f"connectors there: {there}")

    # Its offsets

    def offsets(self, name: str) -> SourceOffset | None:
        """Read the stored position, None when none is stored yet or there is no such connector."""
        config = self.config(name)
        if config is None:
            return None
        answer = self._http.send("GET", f"{_path(name)}/offsets")
        if answer.status >= 400:
            return None
        return answers.source_offset(answer.body, config.get("topic.prefix", ""))

    def set_offset(self, name: str, lsn: int) -> None:
        """Store `lsn` as the position from which a STOPPED connector resumes.

        Only the three positions are stored: Debezium needs no more (measured on 3.7.0.Final), and
        cannot read back a `ts_usec` that went through JSON. Raises Failed unless it is STOPPED.
        """
        prefix = (self.config(name) or {}).get("topic.prefix", "")
        offset = {"lsn": lsn, "lsn_proc": lsn, "lsn_commit": lsn}
        self._change_offsets(
            name, "PATCH", {"offsets": [{"partition": {"server": prefix}, "offset": offset}]}
        )

    def reset_offsets(self, name: str) -> None:
        """Forget the stored position of a STOPPED connector. Raises Failed unless it is STOPPED."""
        self._change_offsets(name, "DELETE", None)

    # Patience

    def _change_offsets(self, name: str, method: str, body: object) -> None:
        deadline, delays = self._clock() + VISIBLE_SECONDS, growing_delays()
        while True:
            answer = self._known(name, method, "/offsets", body=body, accept=(400,))
            if answer.status < 400:
                return
            # STOPPED shows before the last task has really ended.
            status = self.status(name)
            if status is None or not status.stopped or self._clock() >= deadline:
                raise Failed(answer.message, where=self.where)
            self._sleep(next(delays))

    def _known(
        self,
        name: str,
        method: str,
        suffix: str,
        *,
        body: object = None,
        params: Mapping[str, str] | None = None,
        accept: tuple[int, ...] = (),
    ) -> HttpAnswer:
        """Send a request about a connector that must exist; wait while a new one is not known everywhere."""
        deadline, delays = self._clock() + VISIBLE_SECONDS, growing_delays()
        while True:
            answer = self._http.send(
                method, _path(name) + suffix, body=body, params=params, timeout=CHANGE_SECONDS
            )
            if answer.status < 400 or answer.status in accept:
                return answer
            if answer.status != 404:
                raise Failed(answer.message, where=self.where)
            if self.config(name) is None or self._clock() >= deadline:
                raise self.absent(name)
            self._sleep(next(delays))

    def _accepted(self, name: str, answer: HttpAnswer) -> None:
        if answer.status >= 400:
            problem = f"connector {name} is refused: {_complaint(answer)}"
            raise Failed(problem, where=self.where, remedy="nothing was changed")

    def _until_state(self, name: str, reached: Callable[[ConnectorStatus], bool], state: str) -> None:
        def there() -> bool:
            status = self.status(name)
            return status is not None and reached(status)

        self._until(there, f"connector {name} was told to become {state} but is not", PATIENCE_SECONDS)

    def _until(self, reached: Callable[[], bool], problem: str, seconds: float = VISIBLE_SECONDS) -> None:
        deadline, delays = self._clock() + seconds, growing_delays()
        while not reached():
            if self._clock() >= deadline:
                raise Failed(f"{problem} after {seconds:.0f} s", where=self.where)
            self._sleep(min(next(delays), 1.0))


def _path(name: str) -> str:
    return f"/connectors/{quote(name, safe='')}"


def _complaint(answer: HttpAnswer) -> str:
    """Drop what Connect wraps around the errors of a configuration."""
    lines = answer.lines
    first = next((i + 1 for i, line in enumerate(lines) if line.endswith("error(s):")), 0)
    return "; ".join(line for line in lines[first:] if not line.startswith("You can also find"))
