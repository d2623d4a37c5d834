"""Sample Kafka Connect: the connector, its tasks, and the position it has stored."""

from __future__ import annotations

from outbox_connectors.definition import Connect
from outbox_connectors.masking import shown
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.watch.sample import ConnectSample, TaskSample

TIMEOUT_SECONDS = 3.0
PATIENCE_SECONDS = 1.0  # a longer rebalance fails this sample


class ConnectSource:
    """A session with Connect. Not safe for two threads at once."""

    def __init__(self, connect: Connect) -> None:
        self._client = ConnectClient(connect, timeout=TIMEOUT_SECONDS, patience=PATIENCE_SECONDS)
        self._name = connect.connector

    def look(self) -> ConnectSample:
        """Take one sample. Raises Unreachable or Failed."""
        status = self._client.status(self._name)
        if status is None:
            return ConnectSample(state=None)
        offset = self._client.offsets(self._name)
        config = self._client.config(self._name)
        return ConnectSample(
            state=status.state,
            worker=status.worker_id,
            tasks=tuple(
                TaskSample(task.id, task.state, task.trace_line, task.worker_id) for task in status.tasks
            ),
            trace_line=status.trace_line,
            offset_lsn=offset.resume_at if offset else None,
            offset_type=offset.message_type if offset else None,
            offset_unreadable=offset is not None and offset.resume_at is None,
            config=None if config is None else {key: shown(key, text) for key, text in config.items()},
        )

    def close(self) -> None:
        """End the session."""
        self._client.close()
