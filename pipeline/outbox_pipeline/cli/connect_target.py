"""Which connector a command is about: the definition's, or any other by name and address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
import psycopg

from outbox_connectors.definition import Connect, ConnectAuth, Definition, Secret
from outbox_pipeline.cli import Invocation
from outbox_pipeline.connect.client import ConnectClient, ConnectorStatus
from outbox_pipeline.errors import UsageError
from outbox_pipeline.servers import postgres


@dataclass(frozen=True, slots=True)
class Target:
    """One connector on one Connect cluster, and how to reach the database behind it."""

    client: ConnectClient
    name: str
    admin: Secret  # libpq conninfo; empty: libpq's own PG* environment

    def database(self, name: str) -> psycopg.Connection[Any]:
        """Connect to the connector's database."""
        conn = postgres.connect(self.admin, application_name="outboxctl connectors", dbname=name or None)
        postgres.administer(conn)
        return conn

    def status(self) -> ConnectorStatus:
        """Read the connector's state; raises Failed where there is no such connector."""
        status = self.client.status(self.name)
        if status is None:
            raise self.client.absent(self.name)
        return status

    def config(self) -> dict[str, str]:
        """Read the connector's configuration; raises Failed where there is no such connector."""
        config = self.client.config(self.name)
        if config is None:
            raise self.client.absent(self.name)
        return config


@dataclass(frozen=True, slots=True)
class ConnectTarget:
    """Where to look: the global options, and the address given instead of the definition's."""

    invocation: Invocation
    url: str | None

    def definition(self) -> Definition | None:
        """Load the definition, unless an address was given and there is no such file."""
        if self.url is not None and not self.invocation.file.exists():
            return None
        return self.invocation.definition()

    def connect(self) -> Connect:
        """Tell how to reach Kafka Connect: the address given, with the definition's credentials."""
        definition = self.definition()
        if self.url is None:
            assert definition is not None  # it was loaded, or loading it has raised
            return definition.connect
        auth = definition.connect.auth if definition else ConnectAuth()
        return Connect(url=self.url, connector="", auth=auth, config={})

    def client(self) -> ConnectClient:
        """Make a client, for the caller to close."""
        return ConnectClient(self.connect())

    @contextmanager
    def target(self, name: str | None) -> Iterator[Target]:
        """Open a client for one connector, the definition's own unless `name` says another."""
        definition = self.definition()
        chosen = name or (definition.connect.connector if definition else None)
        if not chosen:
            raise UsageError("which connector?", remedy="give its name, or a definition with -f")
        admin = definition.postgres.admin if definition else Secret("")
        with self.client() as client:
            yield Target(client, chosen, admin)


pass_place = click.make_pass_decorator(ConnectTarget)
name_argument = click.argument("name", required=False)
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be done, change nothing.")
force_option = click.option("--force", is_flag=True, help="Go ahead although rows may be lost.")
wait_option = click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(min=0),
    default=15,
    show_default=True,
    metavar="SECONDS",
    help="Watch the task this long: most mistakes fail it within seconds, not at once.",
)
