"""The common interface of the three services: how to prepare, check, stop and diagnose them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from local_stack.instance import Instance
from local_stack.processes import Launch
from local_stack.programs import Say

# For a machine at many times its usual load; a server that exits is noticed at once.
START_SECONDS = 300.0
STOP_SECONDS = 120.0  # a Java server writes its class archive at its first exit
CHECK_SECONDS = 10.0  # for one answer


@dataclass(frozen=True, slots=True)
class Service:
    """A server of the stack.

    prepare: everything before the start (programs, first data, configuration); returns how to start it.
    ports:   the names of its ports, the one for clients first.
    check:   verify that it works and return a short description; raises NotReady otherwise. Takes at most
             CHECK_SECONDS.
    failure: texts that mark the log line with the cause of an exit, the most specific first.
    predecessor: texts in the log which mean that processes of a crashed server still exist; the server is
             then started again.
    """

    name: str
    ports: tuple[str, ...]
    needs: tuple[str, ...]
    prepare: Callable[[Instance, Say], Launch]
    check: Callable[[Instance], str]
    failure: tuple[str, ...]
    stop_signal: signal.Signals
    predecessor: tuple[str, ...] = ()

    def address(self, instance: Instance) -> str:
        return f"127.0.0.1:{instance.ports[self.ports[0]]}"
