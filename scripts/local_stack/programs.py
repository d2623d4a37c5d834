"""The pinned programs: Maven downloads them once, into .stack/lib."""

from __future__ import annotations

import contextlib
import hashlib
import platform
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from local_stack.errors import StackError
from local_stack.instance import file_lock
from local_stack.layout import Layout

MAJORS = (14, 15, 16, 17, 18)
PLATFORMS = {
    ("Linux", "x86_64"): "linux-amd64",
    ("Linux", "aarch64"): "linux-arm64v8",
    ("Darwin", "x86_64"): "darwin-amd64",
    ("Darwin", "arm64"): "darwin-arm64v8",
}
ROOM = 500 * 2**20
Say = Callable[[str], None]


def ensure_kafka(layout: Layout, say: Say) -> Path:
    """The folder with the jars of the broker and of Connect."""
    target = layout.lib / "kafka"
    with _installing(layout, target, "kafka", say) as draft:
        if draft is not None:
            _copy(layout, "kafka", draft)
    return target


def ensure_debezium(layout: Layout, say: Say) -> Path:
    """The plug-in path of Connect: a folder with one folder per plug-in."""
    plugins = layout.lib / "connect"
    with _installing(layout, plugins / "debezium-postgres", "debezium", say) as draft:
        if draft is not None:
            _copy(layout, "debezium", draft)
    return plugins


def ensure_postgres(layout: Layout, base: Path, major: int, say: Say) -> Path:
    """The folder with bin, lib and share of a PostgreSQL major, below `base`."""
    target = base / "lib" / "postgres" / str(major)
    with _installing(layout, target, f"postgres-{major}", say) as draft:
        if draft is not None:
            _copy(layout, f"postgres-{major}", draft, f"-Dpostgres.platform={this_platform()}")
            _unpack(draft)
    return target


def this_platform() -> str:
    """The platform name of this machine in the published PostgreSQL binaries."""
    machine = (platform.system(), platform.machine())
    if machine not in PLATFORMS:
        raise StackError(
            f"there are no PostgreSQL binaries for {' '.join(machine)}",
            f"use one of {', '.join(sorted(PLATFORMS.values()))}, or Docker Compose",
        )
    return PLATFORMS[machine]


def pinned_version(layout: Layout, name: str) -> str:
    """A version that pom.xml pins, for instance `kafka`."""
    found = re.search(rf"<{name}\.version>([^<]+)<", (layout.runtime / "pom.xml").read_text())
    return found[1] if found else "unknown"


@contextlib.contextmanager
def _installing(layout: Layout, target: Path, profile: str, say: Say) -> Iterator[Path | None]:
    """Yield a folder to fill, which becomes `target` at the end; None when `target` is complete already.

    A stamp in the folder holds the digest of the pom.xml it was made from, so a changed version is downloaded
    again. Stacks that start at the same time take turns.
    """
    stamp = target / ".pom"
    want = hashlib.sha256((layout.runtime / "pom.xml").read_bytes()).hexdigest()
    if _read(stamp) == want:
        yield None
        return
    with file_lock(layout.lib / ".lock", lambda: say("waiting for another stack that downloads programs")):
        if _read(stamp) == want:
            yield None
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        require_room(target.parent, ROOM)
        say(f"downloading {profile} with Maven")
        draft = target.with_name(f".{target.name}.new")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        try:
            yield draft
            (draft / ".pom").write_text(want)
            if target.exists():
                shutil.rmtree(target)
            draft.rename(target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def require_room(folder: Path, least: int) -> None:
    """Raise StackError if the disk has less free space than `least` bytes."""
    free = shutil.disk_usage(folder).free
    if free < least:
        raise StackError(
            f"only {free // 2**20} MB free on the disk of {folder}",
            f"free some space: this needs {least // 2**20} MB",
        )


def _copy(layout: Layout, profile: str, target: Path, *options: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise StackError(
            "no mvn on PATH",
            "install Apache Maven; it fetches the pinned Kafka, Debezium and PostgreSQL",
        )
    done = subprocess.run(
        [
            *(
                maven,
                "--batch-mode",
                "--quiet",
                "-Dstyle.color=never",
                "--file",
                str(layout.runtime / "pom.xml"),
            ),
            *(f"--activate-profiles={profile}", *options),
            *("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={target}"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        cause = next((line for line in lines if "ERROR" in line), lines[0] if lines else "no output")
        cause = cause.replace("[ERROR]", "").strip()[:400]
        raise StackError(
            f"Maven could not download {profile}: {cause}", "check the network and the free space on the disk"
        )


def _unpack(folder: Path) -> None:
    """Unpack the PostgreSQL archive inside the jar and delete the jar."""
    for jar in folder.glob("*.jar"):
        with zipfile.ZipFile(jar) as archive:
            inner = next(name for name in archive.namelist() if name.endswith(".txz"))
            with archive.open(inner) as stream, tarfile.open(fileobj=stream, mode="r:xz") as tar:
                if hasattr(tarfile, "data_filter"):  # since Python 3.11.4
                    tar.extraction_filter = tarfile.data_filter
                tar.extractall(folder)
        jar.unlink()
