"""Reach Kafka as an administrator: one client, one way to wait for it, one way to say what went wrong.

librdkafka retries a connection for ever and reports why only through a callback, so the last
reason it gave is kept and becomes the text of the error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from outbox_connectors.definition import Kafka
from outbox_pipeline.errors import AccessDenied, DefinitionError, LoginFailed, Unreachable

Result = TypeVar("Result")

# What confluent-kafka raises when a client is made with a property that it or librdkafka refuses.
REFUSED_SETTINGS: Final = (KafkaException, ValueError, TypeError)

log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())

# What an administrator's client does unless the definition says otherwise. A broker that has just begun, or
# was cut off from its controller, tells for a moment of no controller. A client that asks in that moment does
# not ask again before its next refresh, by default in five minutes (librdkafka 2.16, Kafka 4.3).
BY_ITSELF: Final = {"log_level": 2, "topic.metadata.refresh.interval.ms": 1000}

# Nothing but a changed configuration mends these; waiting for the time-out would only cost time.
HOPELESS = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._RESOLVE})
NO_ANSWER = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
    }
)
FORBIDDEN = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    }
)


@dataclass(slots=True)
class Administrator:
    """An AdminClient with the reasons librdkafka gave. Lives for one operation; holds connections."""

    servers: str
    client: AdminClient
    clock: Callable[[], float]
    reasons: list[KafkaError] = field(default_factory=list)

    def wait(self, future: Future[Result], timeout_seconds: float) -> Result:
        """Wait for an answer, at most `timeout_seconds`.

        Ends early where waiting cannot help (wrong password, TLS, unknown host). Raises Unreachable
        for a broker that does not answer, LoginFailed or AccessDenied for one that rejects us; every other
        error of the broker comes as the KafkaException that it is, for the caller to put into words.
        """
        deadline = self.clock() + timeout_seconds
        while not future.done():
            self.client.poll(0.05)
            if any(reason.code() in HOPELESS for reason in self.reasons) or self.clock() > deadline:
                raise self._unreachable()
        try:
            return future.result()
        except KafkaException as error:
            code = error.args[0].code()
            if code in NO_ANSWER:
                raise self._unreachable() from error
            if code in FORBIDDEN:
                raise AccessDenied(
                    f"Kafka refuses us: {error.args[0].str()}",
                    where=self.servers,
                    remedy="grant this user DESCRIBE, CREATE, ALTER and DESCRIBE_CONFIGS on the topics",
                ) from error
            raise

    def _unreachable(self) -> Unreachable:
        return unreachable(self.servers, self.reasons)


def unreachable(servers: str, reasons: list[KafkaError]) -> Unreachable:
    """Put into one line why a broker cannot be used, from what librdkafka reported."""
    hopeless = [reason for reason in reasons if reason.code() in HOPELESS]
    telling = [reason for reason in reasons if reason.code() != KafkaError._ALL_BROKERS_DOWN]
    candidates = hopeless or telling or reasons
    if not candidates:
        return Unreachable(
            "Kafka does not answer",
            where=servers,
            remedy="check kafka.client bootstrap.servers, and security.protocol where the broker wants TLS",
        )
    reason = candidates[-1]
    kind = Unreachable
    if reason.code() in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED):
        kind = LoginFailed
        remedy = "check sasl.username, sasl.password and sasl.mechanism in kafka.client"
    elif reason.code() == KafkaError._SSL or "SSL" in reason.str():
        remedy = "check security.protocol and ssl.ca.location in kafka.client"
    else:
        remedy = "check bootstrap.servers in kafka.client and that the broker runs"
    return kind(f"Kafka does not answer: {_spoken(reason)}", where=servers, remedy=remedy)


def _spoken(reason: KafkaError) -> str:
    """Drop librdkafka's counters and thread names from a reason."""
    words = reason.str().partition(" (after ")[0]
    head, separator, tail = words.partition("]: ")
    return (tail if separator and head.startswith("[") else words).strip()


def refused_settings(error: Exception) -> DefinitionError:
    """Say in one line which property librdkafka refuses; `error` is one of REFUSED_SETTINGS."""
    cause = error.args[0].str() if isinstance(error, KafkaException) else str(error)
    return DefinitionError(f"librdkafka refuses kafka.client: {cause}", remedy="mend it in the definition")


def administrator(kafka: Kafka, *, clock: Callable[[], float] = time.monotonic) -> Administrator:
    """Make an administrator's client, which connects when it is first asked something.

    Raises DefinitionError for a property that librdkafka refuses.
    """
    reasons: list[KafkaError] = []
    servers = kafka.client.get("bootstrap.servers", "")
    try:
        options: dict[str, Any] = {**BY_ITSELF, **kafka.client, "error_cb": reasons.append}
        client = AdminClient(options, logger=log)
    except REFUSED_SETTINGS as error:
        raise refused_settings(error) from error
    return Administrator(servers=f"Kafka at {servers}", client=client, clock=clock, reasons=reasons)
