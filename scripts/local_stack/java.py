"""Find Java and build the command lines of Kafka programs; they start faster from the second time on.

A JVM spends most of its start on loading classes. The first run of a service writes the classes it loaded to
an archive on a graceful exit; later runs map that file (measured for Kafka: 3.3 instead of
5.8 seconds of CPU). An archive that does not fit, because Java or a jar was changed, is ignored by the JVM.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from local_stack.errors import StackError
from local_stack.instance import Instance

MINIMUM = 17
# The serial collector starts faster and takes less memory than G1; a heap this small is collected quickly.
FLAGS = (
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Xss512k",
    "-XX:ReservedCodeCacheSize=96m",
    "-Djava.awt.headless=true",
)


def find() -> tuple[str, str]:
    """The java of JAVA_HOME, else the first on PATH, and its version, which must be 17 or later."""
    home = os.environ.get("JAVA_HOME", "")
    found = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    if found is None:
        place = f"in JAVA_HOME ({home})" if home else "on PATH"
        raise StackError(f"no java {place}", f"install a Java {MINIMUM} runtime or later, or set JAVA_HOME")
    done = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "((\d+)[\w.]*)', done.stderr)
    if version is None:
        raise StackError(f"{found} -version prints no version", "set JAVA_HOME to a working Java")
    if int(version[2]) < MINIMUM:
        raise StackError(
            f"{found} is Java {version[2]}, Kafka needs {MINIMUM} or later", "set JAVA_HOME to a later one"
        )
    return found, version[1]


def server(instance: Instance, service: str, libraries: Path, main: str, *arguments: str) -> list[str]:
    """The command line of a server, logging to standard output."""
    program, version = find()
    archive = _archive(instance, libraries, service, version)
    return [program, *_flags(instance, "256m"), archive, "-cp", str(libraries / "*"), main, *arguments]


def tool(instance: Instance, libraries: Path, main: str, *arguments: str) -> list[str]:
    """The command line of a tool that exits when it is done."""
    program, _version = find()
    return [program, *_flags(instance, "128m"), "-cp", str(libraries / "*"), main, *arguments]


def environment() -> dict[str, str]:
    """The environment of a Java program: a copy of this one without CLASSPATH."""
    return {name: value for name, value in os.environ.items() if name != "CLASSPATH"}


def _flags(instance: Instance, heap: str) -> list[str]:
    logging = instance.layout.runtime / "log4j2.properties"
    return [*FLAGS, f"-Xmx{heap}", f"-Dlog4j2.configurationFile={logging}"]


def _archive(instance: Instance, libraries: Path, service: str, version: str) -> str:
    """The flag that uses the class archive of a service or, when there is none, writes it on exit."""
    name = f"{service}-{version}.jsa"
    if (libraries / name).exists():
        return f"-XX:SharedArchiveFile={libraries / name}"
    draft = instance.folder / "run" / name
    draft.unlink(missing_ok=True)
    return f"-XX:ArchiveClassesAtExit={draft}"


def share_archive(instance: Instance, service: str) -> None:
    """Share the archive that a service wrote with all stacks; the service must have exited gracefully."""
    for draft in (instance.folder / "run").glob(f"{service}-*.jsa"):
        draft.replace(instance.layout.lib / "kafka" / draft.name)
