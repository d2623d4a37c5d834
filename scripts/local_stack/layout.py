"""The paths of the repository, the shared programs and the folder of each stack."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from local_stack.accounts import Account, can_enter
from local_stack.errors import StackError

REPOSITORY = Path(__file__).resolve().parents[2]
NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
RESERVED = frozenset({"lib", "pythons"})


@dataclass(frozen=True, slots=True)
class Layout:
    """The folders of one clone. `outside` is for files that a non-root server cannot access in it."""

    repository: Path = REPOSITORY

    @property
    def runtime(self) -> Path:
        """The pom.xml and the configuration templates."""
        return self.repository / "connectors" / "runtime"

    @property
    def stacks(self) -> Path:
        return self.repository / ".stack"

    @property
    def lib(self) -> Path:
        return self.stacks / "lib"

    @property
    def outside(self) -> Path:
        digest = hashlib.sha256(os.fsencode(self.repository)).hexdigest()[:12]
        return Path("/var/tmp") / f"outbox-pipeline-{digest}"

    @property
    def outside_lock(self) -> Path:
        """Held while a stack decides to use `outside`, or while `outside` is deleted because none does."""
        return self.stacks / ".outside.lock"

    def folder(self, name: str) -> Path:
        return self.stacks / name

    def names(self) -> list[str]:
        """The names of all stacks of this clone, running or not."""
        return sorted(path.parent.name for path in self.stacks.glob("*/run"))

    def postgres_base(self, account: Account | None) -> Path:
        """The folder for PostgreSQL's programs and data: .stack, or `outside` if `account` cannot access it.

        A server started by root runs as another user, who cannot access a clone below a folder of mode 0700.
        """
        self.stacks.mkdir(exist_ok=True)
        if account is None or can_enter(account, self.stacks):
            return self.stacks
        return private_folder(self.outside)


def private_folder(path: Path) -> Path:
    """Create `path` in a world-writable folder; refuse one that another user created first."""
    path.mkdir(mode=0o755, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise StackError(f"{path} was created by another user", "remove it and try again")
    return path


def checked_name(name: str) -> str:
    """Return the name if it is valid for a stack. Raises StackError."""
    if not NAME.fullmatch(name) or name in RESERVED:
        raise StackError(
            f"{name!r} is not a valid name of a stack",
            "use lower case letters, digits, - and _ (not lib or pythons)",
        )
    return name
