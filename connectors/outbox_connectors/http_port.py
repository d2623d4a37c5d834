"""The HTTP port of a process that does something else: whatever a client does, the process goes on."""

from __future__ import annotations

import logging
import sys
from http.server import ThreadingHTTPServer
from typing import Any, Final

log = logging.getLogger("outbox_connectors")

REQUEST_SECONDS: Final = 10.0  # a client that sends nothing holds a thread this long


class HttpPort(ThreadingHTTPServer):
    """Answers each request in a thread of its own. A client that hangs up is no error and no news."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say in one line what went wrong with an answer; nothing where the client has gone or is silent."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            log.error("an HTTP request failed: %s: %s", type(error).__name__, " ".join(str(error).split()))
