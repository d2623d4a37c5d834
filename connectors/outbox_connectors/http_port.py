"""An HTTP port for health and metrics that no client can use to stop or block the process."""

from __future__ import annotations

import logging
import sys
from http.server import ThreadingHTTPServer
from typing import Any, Final

log = logging.getLogger("outbox_connectors")

REQUEST_SECONDS: Final = 10.0  # a client that sends nothing holds a thread this long


class HttpPort(ThreadingHTTPServer):
    """Answers each request in its own thread. A client that disconnects is neither an error nor logged."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log in one line why a request failed; nothing if the client disconnected or sent nothing."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            log.error("an HTTP request failed: %s: %s", type(error).__name__, " ".join(str(error).split()))
