"""Two Connect workers in one group: every command works through either of them, and one may die.

Part of `make soak`: a second worker costs a start of Java, and both rebalance. $OUTBOX_TWO_WORKERS runs it.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from fix_provision import Pipeline
from fix_stack import Stack
from forms import LONG
from local_stack import java
from local_stack.instance import load
from local_stack.layout import Layout
from waiting import PATIENCE_SECONDS, until

pytestmark = [
    pytest.mark.stack,
    pytest.mark.skipif(not LONG, reason="for make soak"),
]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def answers(url: str, behind: Pipeline) -> bool:
    return behind.changed(connect={"url": url}).run("connectors", "list").code == 0


@pytest.fixture
def second(
    stack: Stack, tmp_path: Path, untouched: Pipeline
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A worker beside the stack's own, in its group, and its address."""
    instance, port = load(Layout(), stack.name), free_port()
    config = tmp_path / "second-worker.properties"
    text = instance.config("connect.properties").read_text("utf-8")
    config.write_text(text.replace(f"{instance.ports['connect']}", f"{port}"), "utf-8")
    libraries = instance.layout.lib / "kafka"
    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    environ = {**java.environment(), "OUTBOX_CDC_PASSWORD": stack.environ["OUTBOX_CDC_PASSWORD"]}
    with (tmp_path / "second-worker.log").open("wb") as log:
        command = java.server(instance, "connect", libraries, main, str(config))
        worker = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        until(lambda: answers(url, untouched), "the second worker answers")
        yield worker, url
    finally:
        worker.kill()
        worker.wait(PATIENCE_SECONDS)
        until(lambda: answers(stack.connect_url, untouched), "the first worker is alone again")


def test_every_command_works_through_either_and_one_may_die(
    own_pipeline: Pipeline, second: tuple[subprocess.Popen[bytes], str]
) -> None:
    worker, url = second
    other = own_pipeline.changed(connect={"url": url})
    assert other.run("apply").code == 0, "registered through the second, proven by a canary"
    assert own_pipeline.plan() == {}

    def running(where: Pipeline) -> bool:
        answer = where.run("--json", "connectors", "status")
        return answer.code == 0 and answer.document()["tasks"][0]["state"] == "RUNNING"

    for one, another in ((own_pipeline, other), (other, own_pipeline)):
        assert one.run("connectors", "restart", "--wait", "0", "--force").code == 0
        until(partial(running, one), "the task runs after a restart")
        assert another.run("connectors", "pause").code == 0
        assert one.run("connectors", "resume", "--wait", "0").code == 0
        until(partial(running, another), "the task runs again")

    worker.kill()
    until(lambda: running(own_pipeline), "the worker that is left runs the task")
    assert own_pipeline.run("apply").code == 0
