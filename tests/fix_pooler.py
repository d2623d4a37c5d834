"""PgBouncer before a database, in the pool mode that a test asks for."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from waiting import until

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


@contextmanager
def pgbouncer(
    conninfo: str, folder: Path, *, name: str = "bench", mode: str = "transaction", size: int = 2
) -> Iterator[str]:
    """Give a dsn that leads through PgBouncer to a database; all its clients share `size` connections."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = conninfo_to_dict(conninfo)
    names = ("host", "port", "user", "password", "dbname")
    config = folder / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n{name} = {' '.join(f'{key}={server[key]}' for key in names)}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\nunix_socket_dir =\n"
        f"pool_mode = {mode}\ndefault_pool_size = {size}\n"
        "ignore_startup_parameters = extra_float_digits,options\n"
    )
    for path in (folder, *folder.parents[:2]):
        path.chmod(0o755)  # it will not run as root, and reads its file as somebody else
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    assert PGBOUNCER is not None
    child = subprocess.Popen([PGBOUNCER, "-q", *user, str(config)], stderr=subprocess.DEVNULL)
    dsn = make_conninfo("", host="127.0.0.1", port=port, dbname=name, user="anybody", sslmode="disable")
    try:
        until(lambda: _answers(dsn, child), "PgBouncer answers")
        yield dsn
    finally:
        child.kill()
        child.wait()


def left_in(pooled: str) -> list[tuple[Any, ...]]:
    """Read what a client finds in the server session that it is lent: settings and prepared statements."""
    with psycopg.connect(pooled, prepare_threshold=None, application_name="look") as conn:
        found = conn.execute("SELECT name, setting FROM pg_settings ORDER BY name").fetchall()
        return [*found, *conn.execute("SELECT name, statement FROM pg_prepared_statements").fetchall()]


def _answers(dsn: str, child: subprocess.Popen[bytes]) -> bool:
    assert child.poll() is None, f"PgBouncer ended with code {child.returncode}"
    try:
        with psycopg.connect(dsn, autocommit=True) as conn:
            return conn.execute("SELECT 1").fetchone() == (1,)
    except psycopg.OperationalError:
        return False
