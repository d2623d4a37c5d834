"""The ports of a stack: fixed ones for the default name, free ones for all others, which it keeps."""

from __future__ import annotations

import errno
import socket
import zlib
from collections.abc import Iterator

from local_stack.errors import StackError
from local_stack.instance import DEFAULT_NAME, Instance, file_lock, load

HOST = "127.0.0.1"
NAMES = ("postgres", "kafka", "controller", "connect")
DEFAULT_PORTS = {"postgres": 15432, "kafka": 19092, "controller": 19093, "connect": 18083}
# Below the range that kernels hand out to outgoing connections (32768 and up on Linux, 49152 on macOS).
FIRST, LAST = 20000, 32000


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def is_open(port: int) -> bool:
    """Whether something accepts connections on `port`."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def assign(instance: Instance, *, idle: bool) -> list[str]:
    """Give the stack its ports, if it has none; save it. Returns the services whose port changed.

    When nothing of the stack runs (`idle`), a port that was taken meanwhile is replaced, except for the
    default name: its ports are documented, so a taken one is an error when its service starts.
    """
    if instance.name == DEFAULT_NAME:
        instance.ports = dict(DEFAULT_PORTS)
        instance.save()
        return []
    with file_lock(instance.layout.stacks / ".ports.lock"):
        taken = _ports_of_other_stacks(instance)
        moved = [
            name
            for name in NAMES
            if name not in instance.ports or (idle and not is_free(instance.ports[name]))
        ]
        candidates = _candidates(instance)
        for name in moved:
            used = taken | set(instance.ports.values())
            port = next((port for port in candidates if port not in used and is_free(port)), None)
            if port is None:
                raise StackError(f"no free port between {FIRST} and {LAST}", "stop other stacks")
            instance.ports[name] = port
        instance.save()
    return moved


def _ports_of_other_stacks(instance: Instance) -> set[int]:
    """The ports of the other stacks of this clone, running or not."""
    others = (
        load(instance.layout, name, damaged=True) for name in instance.layout.names() if name != instance.name
    )
    return set(DEFAULT_PORTS.values()).union(*(other.ports.values() for other in others))


def _candidates(instance: Instance) -> Iterator[int]:
    """All ports of the range, starting at one that depends on clone and name: two clones rarely collide."""
    size = LAST - FIRST
    start = zlib.crc32(f"{instance.layout.repository}/{instance.name}".encode()) % size
    return (FIRST + (start + step) % size for step in range(size))


def require_free(service: str, port: int, instance: Instance) -> None:
    """Raise StackError if another process listens on the port of a service."""
    if is_free(port):
        return
    if instance.name == DEFAULT_NAME:
        remedy = (
            "stop what listens there, or use a stack with ports of its own: scripts/stack --name other up"
        )
    else:
        remedy = (
            f"stop what listens there, or move the stack: scripts/stack --name {instance.name} down, then up"
        )
    raise StackError(f"{service}: port {port} is taken by another process", remedy)
