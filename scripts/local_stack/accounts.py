"""The account that PostgreSQL runs as when this process is root; it refuses to run as root."""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path

from local_stack.errors import StackError

CANDIDATES = ("postgres", "nobody", "daemon")


@dataclass(frozen=True, slots=True)
class Account:
    """A user of this machine and its primary group."""

    name: str
    uid: int
    gid: int


def server_account() -> Account | None:
    """The account for servers that refuse root; None when this process is not root."""
    if os.geteuid() != 0:
        return None
    for name in CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(name, entry.pw_uid, entry.pw_gid)
    raise StackError(
        f"PostgreSQL does not run as root, and there is no user {', '.join(CANDIDATES)}",
        "create one (useradd --system postgres) or run this as another user",
    )


def can_enter(account: Account, folder: Path) -> bool:
    """Whether `account` can change to `folder` and list it; tries it in a process of that account."""
    done = subprocess.run(
        ["/bin/sh", "-c", 'cd "$0" && [ -r . ]', str(folder)],
        cwd="/",
        user=account.uid,
        group=account.gid,
        extra_groups=[],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode == 0


def change_owner(path: Path, account: Account | None) -> None:
    """Make `account` the owner of `path`; does nothing when servers run as the current user."""
    if account is not None:
        os.chown(path, account.uid, account.gid)
