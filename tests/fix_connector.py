"""A provisioned pipeline without a connector, and `outboxctl` as a user calls it.

new_pipeline   new_pipeline(): a database with outbox, publication and slot, and a definition file
pipeline       one of them
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg
import pytest

from asking import administrator
from fix_stack import Database, Stack
from loss_lab import DEFINITION, Road, definition_of
from outbox_pipeline import cli, provision
from outbox_pipeline.connect.client import ConnectClient, ConnectorStatus, SourceOffset
from outbox_pipeline.interruption import Interruption
from waiting import PATIENCE_SECONDS, until


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def text(self) -> str:
        return self.out + self.err


@dataclass(slots=True)
class Pipeline(Road):
    """A road with a definition file, `outboxctl`, and a client of its own."""

    file: Path = field(kw_only=True)
    environ: dict[str, str] = field(kw_only=True)
    client: ConnectClient = field(kw_only=True)
    conninfo: str = field(kw_only=True)

    def outboxctl(self, *arguments: str, definition: bool = True, typed: str = "") -> Ran:
        """Run `outboxctl connectors ...` with the definition file, or from a folder that has none."""
        options = ["-f", str(self.file)] if definition else []
        out, err = StringIO(), StringIO()
        with ExitStack() as there:
            there.enter_context(patch.dict(os.environ, self.environ, clear=True))
            there.enter_context(patch.object(sys, "stdin", StringIO(typed)))
            there.enter_context(chdir(self.file.parent / "empty"))
            there.enter_context(redirect_stdout(out))
            there.enter_context(redirect_stderr(err))
            code = cli.run([*options, "connectors", *arguments], Interruption())
        assert "Traceback" not in err.getvalue(), err.getvalue()
        assert "internal error" not in err.getvalue(), err.getvalue()
        return Ran(code, out.getvalue(), err.getvalue())

    def register(self) -> None:
        """Register the connector and wait until its task runs."""
        ran = self.outboxctl("register", "--wait", "0")
        assert ran.code == 0, ran.text
        self.wait_until_running()

    def wait_until_running(self) -> None:
        def running() -> bool:
            status = self.client.status(self.connector)
            return status is not None and [t.state for t in status.tasks] == ["RUNNING"]

        assert until(running), self.client.status(self.connector)

    def wait_until_failed(self) -> ConnectorStatus:
        def failed() -> ConnectorStatus | None:
            status = self.client.status(self.connector)
            return status if status is not None and status.failed else None

        status = until(failed)
        assert status is not None, self.client.status(self.connector)
        return status

    def wait_until_stored(self, behind: int = 0) -> SourceOffset:
        """Wait until Connect has stored an offset of a row beyond a position."""

        def stored() -> SourceOffset | None:
            offset = self.client.offsets(self.connector)
            there = offset is not None and offset.message_type == "INSERT"
            return offset if offset and there and (offset.lsn or 0) > behind else None

        offset = until(stored)
        assert offset is not None, self.client.offsets(self.connector)
        return offset


NewPipeline = Callable[[], Pipeline]


@pytest.fixture
def new_pipeline(
    stack: Stack,
    own_roles: Callable[[Stack, str], None],
    new_database: Callable[[Stack], Database],
    pipeline_name: str,
    tmp_path: Path,
) -> Iterator[NewPipeline]:
    """A factory of provisioned pipelines, whose connectors are deleted when the test ends."""
    with ExitStack() as made:

        def create() -> Pipeline:
            name = f"{pipeline_name}{chr(ord('a') + len(list(tmp_path.glob('*.yaml'))))}"
            database = new_database(stack)
            own_roles(stack, f"{name}_cdc")
            file = tmp_path / f"{name}.yaml"
            file.write_text(DEFINITION.format(name=name, database=database.name, **stack.environ))
            (tmp_path / "empty").mkdir(exist_ok=True)
            definition = definition_of(name, database)
            conn = made.enter_context(psycopg.connect(database.conninfo, autocommit=True))
            provision.apply_postgres(conn, definition)
            client = made.enter_context(ConnectClient(definition.connect))
            pipeline = Pipeline(
                definition,
                conn,
                file=file,
                environ=_environ(stack),
                client=client,
                conninfo=database.conninfo,
            )
            made.callback(_clean, pipeline)
            return pipeline

        yield create


@pytest.fixture
def pipeline(new_pipeline: NewPipeline) -> Pipeline:
    """A provisioned pipeline without a connector."""
    return new_pipeline()


def _environ(stack: Stack) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "NO_COLOR": "1", **stack.environ}


def _clean(pipeline: Pipeline) -> None:
    if pipeline.client.config(pipeline.connector) is not None:
        pipeline.client.delete(pipeline.connector)
    admin = administrator(pipeline.definition.kafka.client)
    names = [
        name
        for name in admin.list_topics(timeout=PATIENCE_SECONDS).topics
        if name.startswith(pipeline.definition.pipeline)
    ]
    if names:
        for future in admin.delete_topics(names, operation_timeout=PATIENCE_SECONDS).values():
            future.result()
