"""PostgreSQL: a cluster created by initdb, two databases, two application roles."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg import sql

from local_stack.accounts import Account, change_owner, server_account
from local_stack.errors import NotReady, StackError
from local_stack.instance import Instance, file_lock
from local_stack.ports import HOST
from local_stack.processes import Launch, command_line, exists, replace, started
from local_stack.programs import Say, ensure_postgres
from local_stack.service import CHECK_SECONDS, Service

SUPERUSER = "postgres"
ROLES = ("shop_app", "billing_app")
# Who owns a database; the shop's application only writes into tables that the pipeline creates.
DATABASES = {"shop": SUPERUSER, "billing": "billing_app"}
HBA = f"host all all {HOST}/32 scram-sha-256\nhost replication all {HOST}/32 scram-sha-256\n"
INCLUDE = "include = 'stack.conf'\n"


def prepare(instance: Instance, say: Say) -> Launch:
    account = server_account()
    if instance.postgres_base is None or not instance.data("postgres").exists():
        with file_lock(instance.layout.outside_lock):
            instance.postgres_base = instance.layout.postgres_base(account)
            instance.save()
    data = instance.data("postgres")
    check_major(instance)
    programs = ensure_postgres(instance.layout, instance.postgres_base, instance.major, say)
    if not data.exists():
        say(f"creating a PostgreSQL {instance.major} cluster")
        _initialize(instance, programs, data, account)
    _configure(instance, data, account)
    _remove_stale_pid(data)
    return Launch(
        argv=[str(programs / "bin" / "postgres"), "-D", str(data)],
        environ=_environment(),
        cwd=Path("/"),
        log=instance.log("postgres"),
        account=account,
    )


def check_major(instance: Instance) -> None:
    """Raise StackError if the data directory belongs to another major version."""
    try:
        have = int((instance.data("postgres") / "PG_VERSION").read_text())
    except FileNotFoundError:
        return
    if have != instance.major:
        raise StackError(
            f"the data of stack {instance.name} belongs to PostgreSQL {have}, not {instance.major}",
            f"run it with --postgres {have}, delete it with `scripts/stack --name {instance.name} reset`, "
            "or take another --name",
        )


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C", "TZ": "UTC"}


def _initialize(instance: Instance, programs: Path, data: Path, account: Account | None) -> None:
    """Run initdb into a draft and rename it, so that an interrupted run leaves no half-made cluster."""
    data.parent.mkdir(parents=True, exist_ok=True)
    draft = data.with_name("postgres.new")
    password_file = data.with_name("postgres.password")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    change_owner(draft, account)
    try:
        replace(password_file, instance.passwords()["postgres"] + "\n", mode=0o600)
        change_owner(password_file, account)
        done = subprocess.run(
            [
                *(str(programs / "bin" / "initdb"), "--pgdata", str(draft), "--username", SUPERUSER),
                *(
                    "--pwfile",
                    str(password_file),
                    "--auth",
                    "scram-sha-256",
                    "--no-locale",
                    "--encoding",
                    "UTF8",
                ),
            ],
            env=_environment(),
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no output"]
            cause = next((line for line in lines if "error:" in line or "FATAL" in line), lines[-1])
            raise StackError(
                f"initdb failed: {cause}", f"its output is in {_keep(instance, done.stdout + done.stderr)}"
            )
        (draft / "pg_hba.conf").write_text(HBA)
        with (draft / "postgresql.conf").open("a") as file:
            file.write(INCLUDE)
        draft.rename(data)
    finally:
        password_file.unlink(missing_ok=True)
        shutil.rmtree(draft, ignore_errors=True)


def _keep(instance: Instance, output: str) -> Path:
    log = instance.log("postgres")
    with log.open("a") as file:
        file.write(output)
    return log


def _configure(instance: Instance, data: Path, account: Account | None) -> None:
    rendered = instance.render("postgresql.conf", "postgresql.conf").read_text()
    extra = "".join(f"{name} = {_quoted(value)}\n" for name, value in instance.settings.items())
    target = data / "stack.conf"
    replace(target, rendered + extra)
    change_owner(target, account)


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _remove_stale_pid(data: Path) -> None:
    """Remove postmaster.pid if its pid now belongs to a process that is not the server of this cluster.

    PostgreSQL sees only that a process of that number exists, and would refuse to start: for a moment after a
    crash, forever when the pid was reused or no parent reaps the dead process.
    """
    file = data / "postmaster.pid"
    try:
        pid = int(file.read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return
    deadline = time.monotonic() + 2
    while exists(pid) and started(pid) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    if exists(pid) and str(data) not in command_line(pid):
        file.unlink()


@contextlib.contextmanager
def connected(instance: Instance, database: str = "postgres") -> Iterator[psycopg.Connection]:
    """A connection of the superuser, in autocommit mode."""
    try:
        connection = psycopg.connect(
            host=HOST,
            port=instance.ports["postgres"],
            user=SUPERUSER,
            password=instance.passwords()["postgres"],
            dbname=database,
            sslmode="disable",
            gssencmode="disable",
            connect_timeout=int(CHECK_SECONDS),
            application_name="scripts/stack",
            autocommit=True,
        )
    except psycopg.OperationalError as error:
        reason = str(error).strip().splitlines()[-1]
        if "password authentication failed" in reason:
            raise StackError(
                f"stack {instance.name} was created with another password than {instance.secrets_file} has",
                f"delete it with `scripts/stack --name {instance.name} reset`",
            ) from error
        raise NotReady(reason) from error
    with connection:
        yield connection


def check(instance: Instance) -> str:
    """Run a query, and create the databases and roles of every stack if they are missing."""
    try:
        with connected(instance) as connection:
            _create_missing(connection, instance.passwords()["app"])
            row = connection.execute("SELECT current_setting('server_version')").fetchone()
    except psycopg.Error as error:
        raise NotReady(str(error).strip().splitlines()[0]) from error
    return f"PostgreSQL {row[0] if row else '?'}"


def _create_missing(connection: psycopg.Connection, password: str) -> None:
    """Create missing roles and databases. Safe to repeat, also after an interruption."""
    roles = {row[0] for row in connection.execute("SELECT rolname FROM pg_roles")}
    for role in ROLES:
        if role not in roles:
            verifier = connection.pgconn.encrypt_password(
                password.encode(), role.encode(), b"scram-sha-256"
            ).decode()
            statement = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
            connection.execute(statement.format(sql.Identifier(role), sql.Literal(verifier)))
    databases = {row[0] for row in connection.execute("SELECT datname FROM pg_database")}
    for database, owner in DATABASES.items():
        if database not in databases:
            statement = sql.SQL("CREATE DATABASE {} OWNER {}")
            connection.execute(statement.format(sql.Identifier(database), sql.Identifier(owner)))
    # The sample shop keeps its tables in a schema of its own.
    if connection.execute("SELECT has_database_privilege('shop_app', 'shop', 'CREATE')").fetchone() == (
        False,
    ):
        connection.execute("GRANT CREATE ON DATABASE shop TO shop_app")


SERVICE = Service(
    name="postgres",
    ports=("postgres",),
    needs=(),
    prepare=prepare,
    check=check,
    failure=(
        "invalid value for",
        "unrecognized configuration",
        "PANIC:",
        "FATAL:",
        "LOG:  could not",
        "ERROR:",
        "postgres:",
    ),
    stop_signal=signal.SIGINT,
    # The children of a killed server exit a moment after it, and use its shared memory until then.
    predecessor=("pre-existing shared memory block",),
)
