"""Kafka: one KRaft node, broker and controller in one Java process."""

from __future__ import annotations

import shutil
import signal
import subprocess
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from local_stack import java
from local_stack.errors import NotReady, StackError
from local_stack.instance import Instance
from local_stack.ports import HOST, is_open
from local_stack.processes import Launch
from local_stack.programs import Say, ensure_kafka, pinned_version
from local_stack.service import CHECK_SECONDS, Service


def prepare(instance: Instance, say: Say) -> Launch:
    java.find()
    libraries = ensure_kafka(instance.layout, say)
    data = instance.data("kafka")
    config = instance.render("kafka.properties", "kafka.properties", data=data)
    formatted = data.with_name("kafka.formatted")
    if not formatted.exists():
        say("formatting Kafka's storage")
        shutil.rmtree(data, ignore_errors=True)
        _format(instance, libraries, config)
        formatted.touch()
    return Launch(
        argv=java.server(instance, "kafka", libraries, "kafka.Kafka", str(config)),
        environ=java.environment(),
        cwd=instance.folder,
        log=instance.log("kafka"),
    )


def cluster_id(drawn: bytes) -> str:
    """Encode 16 random bytes like Kafka does, without a leading dash, which would be parsed as an option."""
    text = urlsafe_b64encode(drawn).decode().rstrip("=")
    return "A" + text[1:] if text.startswith("-") else text


def _format(instance: Instance, libraries: Path, config: Path) -> None:
    """Give the storage its cluster id, as kafka-storage.sh would."""
    arguments = (
        "format",
        "--cluster-id",
        cluster_id(uuid.uuid4().bytes),
        "--config",
        str(config),
        "--ignore-formatted",
    )
    done = subprocess.run(
        java.tool(instance, libraries, "kafka.tools.StorageTool", *arguments),
        env=java.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    with instance.log("kafka").open("a") as log:
        log.write(done.stdout + done.stderr)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        cause = next((line for line in lines if "Exception" in line or "rror" in line), lines[-1])
        raise StackError(
            f"kafka: formatting the storage failed: {cause[:300]}", f"see {instance.log('kafka')}"
        )


def check(instance: Instance) -> str:
    """Check that the broker answers a metadata request."""
    port = instance.ports["kafka"]
    if not is_open(port):
        raise NotReady(f"nothing listens on port {port}")
    settings = {"log_level": 0, "socket.timeout.ms": int(CHECK_SECONDS * 1000)}
    admin = AdminClient({"bootstrap.servers": f"{HOST}:{port}", **settings})
    try:
        metadata = admin.list_topics(timeout=CHECK_SECONDS)
    except KafkaException as error:
        raise NotReady(error.args[0].str()) from error
    if not metadata.brokers:
        raise NotReady("no broker in the metadata")
    return f"Kafka {pinned_version(instance.layout, 'kafka')}"


SERVICE = Service(
    name="kafka",
    ports=("kafka", "controller"),
    needs=(),
    prepare=prepare,
    check=check,
    failure=("Caused by:", "Exception", "Error", " FATAL ", " ERROR "),
    stop_signal=signal.SIGTERM,
)
