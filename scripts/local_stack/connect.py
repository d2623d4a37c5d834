"""Kafka Connect: one distributed worker with the Debezium plug-in."""

from __future__ import annotations

import http.client
import json
import signal

from local_stack import java
from local_stack.errors import NotReady
from local_stack.instance import Instance
from local_stack.ports import HOST
from local_stack.processes import Launch
from local_stack.programs import Say, ensure_debezium, ensure_kafka
from local_stack.service import CHECK_SECONDS, Service

PLUGIN = "io.debezium.connector.postgresql.PostgresConnector"


def prepare(instance: Instance, say: Say) -> Launch:
    libraries = ensure_kafka(instance.layout, say)
    plugins = ensure_debezium(instance.layout, say)
    passwords = instance.passwords()
    config = instance.render(
        "connect.properties", "connect.properties", plugins=plugins, secrets=instance.secrets_file
    )
    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    return Launch(
        argv=java.server(instance, "connect", libraries, main, str(config)),
        environ={**java.environment(), "OUTBOX_CDC_PASSWORD": passwords["cdc"]},
        cwd=instance.folder,
        log=instance.log("connect"),
    )


def check(instance: Instance) -> str:
    """Check that the worker has the Debezium plug-in and has joined its group."""
    plugins = _get(instance, "/connector-plugins")
    versions = [plugin["version"] for plugin in plugins if plugin["class"] == PLUGIN]
    if not versions:
        raise NotReady(f"the worker does not have {PLUGIN}")
    _get(instance, "/connectors")
    return f"Kafka Connect with Debezium {versions[0]}"


def _get(instance: Instance, path: str) -> list[dict[str, str]]:
    connection = http.client.HTTPConnection(HOST, instance.ports["connect"], timeout=CHECK_SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise NotReady(f"GET {path}: {error}") from error
    finally:
        connection.close()
    if response.status != 200:
        raise NotReady(f"GET {path}: {response.status} {body[:100]!r}")
    found: list[dict[str, str]] = json.loads(body)
    return found


SERVICE = Service(
    name="connect",
    ports=("connect",),
    needs=("kafka",),
    prepare=prepare,
    check=check,
    failure=("Caused by:", "Exception", "Error", " FATAL ", " ERROR "),
    stop_signal=signal.SIGTERM,
)
