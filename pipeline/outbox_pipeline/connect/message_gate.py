"""Ask the live connector before a logical message is written: in a connector of others it stops everything.

Ticks, canaries and fences are such messages. A connector that captures one whose topic does not exist waits
for that topic for ever, RUNNING, with every event behind the message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from outbox_connectors import ownership
from outbox_connectors.definition import Definition
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.errors import OutboxError, Refused
from outbox_pipeline.servers import topics

TIMEOUT_SECONDS = 5.0
PATIENCE_SECONDS = 2.0
TOPIC_SECONDS = 60.0  # for so long a topic that was seen is taken to be there


class MessageGate:
    """Looks at the connector and its topic of messages each time it is asked. Writes nothing anywhere.

    Where Connect or Kafka does not answer, what was seen last counts. Not safe for two threads at once.
    """

    def __init__(
        self,
        definition: Definition,
        client: ConnectClient | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._definition, self._clock = definition, clock
        self._owns_client = client is None
        self._client = client or ConnectClient(
            definition.connect, timeout=TIMEOUT_SECONDS, patience=PATIENCE_SECONDS
        )
        self._seen = False
        self._live: Mapping[str, str] | None = None
        self._topic_exists: bool | None = None
        self._topic_seen_at = float("-inf")
        self._unseen = ""

    def close(self) -> None:
        """End the session with Connect, unless it is the caller's."""
        if self._owns_client:
            self._client.close()

    def why_not(self, prefix: str, *, only_ours: bool = False) -> str:
        """Say why a message with this prefix must not be written now; empty where it may.

        `only_ours`: not either where `apply` did not make the connector, though it would do no harm.
        """
        self._look()
        if not self._seen:
            return (
                f"what connector {self._definition.connect.connector} captures is not known: {self._unseen}"
            )
        foreign = ownership.why_foreign(self._definition, self._live) if only_ours and self._live else ""
        return foreign or ownership.why_no_message(self._definition, self._live, prefix, self._topic_exists)

    def harmless(self, prefix: str) -> bool:
        """Tell whether the connector was seen not to be there, or not to capture such messages."""
        return self._seen and (self._live is None or not ownership.captures(self._live, prefix))

    def why_foreign(self) -> str:
        """Say by what the connector is seen not to be made by `apply`, or that it could not be asked.

        Empty where `apply` made it, and where there is none.
        """
        self._look()
        if not self._seen:
            name = self._definition.connect.connector
            return f"whether outboxctl apply made connector {name} is not known: {self._unseen}"
        return "" if self._live is None else ownership.why_foreign(self._definition, self._live)

    def _look(self) -> None:
        try:
            self._live = self._client.config(self._definition.connect.connector)
            self._seen = True
        except OutboxError as error:
            self._unseen = str(error)
        if self._topic_exists and self._clock() - self._topic_seen_at < TOPIC_SECONDS:
            return
        name = self._definition.message_topic
        try:
            found = topics.inspect(self._definition.kafka, [name], timeout_seconds=TIMEOUT_SECONDS)
        except OutboxError:
            return
        self._topic_exists, self._topic_seen_at = found[name] is not None, self._clock()


def why_not(
    definition: Definition, prefix: str, *, client: ConnectClient | None = None, only_ours: bool = False
) -> str:
    """Say why a message with this prefix must not be written now; empty where it may. Looks once."""
    gate = MessageGate(definition, client)
    try:
        return gate.why_not(prefix, only_ours=only_ours)
    finally:
        gate.close()


def why_harmful(definition: Definition, prefix: str) -> str:
    """Say why a message with this prefix could stop the connector; empty where it could not. Looks once.

    So also where there is no connector, and where it is known not to capture the message.
    """
    gate = MessageGate(definition)
    try:
        reason = gate.why_not(prefix)
        return reason if reason and not gate.harmless(prefix) else ""
    finally:
        gate.close()


def refuse(definition: Definition, prefix: str, what: str) -> None:
    """Raise Refused where a message with this prefix could stop the connector."""
    if reason := why_harmful(definition, prefix):
        raise Refused(
            f"{what} was not written: {reason}",
            where=f"pipeline {definition.pipeline}",
            remedy="see outboxctl plan: only a connector as apply makes it takes messages without harm",
        )
