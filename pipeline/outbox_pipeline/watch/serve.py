"""Serve the last assessment over HTTP: metrics, health, JSON and a page. A request samples no server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Self

from outbox_connectors.http_port import REQUEST_SECONDS, HttpPort
from outbox_pipeline.errors import Failed, UsageError
from outbox_pipeline.watch import document, metrics, page
from outbox_pipeline.watch.long_running import WatchState
from outbox_pipeline.watch.metrics import WatchCounts

JSON = "application/json"
HTML = "text/html; charset=utf-8"
METRICS = "text/plain; version=0.0.4; charset=utf-8"
PLAIN = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Reply:
    """The response to a request."""

    status: HTTPStatus
    kind: str
    body: bytes


@dataclass(frozen=True, slots=True)
class StatusPages:
    """The paths that are served. `stale_seconds`: an older assessment means that the watch is stuck."""

    state: WatchState
    counts: Callable[[], WatchCounts]
    stale_seconds: float

    def reply(self, path: str) -> Reply:
        """Build the response for a path."""
        answer = self.state.answer
        match path.split("?")[0]:
            case "/metrics":
                return Reply(HTTPStatus.OK, METRICS, metrics.exposition(answer, self.counts()))
            case "/healthz":
                return self._health(answer is None or self.state.age() <= self.stale_seconds, "sampling")
            case "/readyz":
                return self._health(answer is not None and not answer.nothing_seen, "ready")
            case "/status.json" if answer is not None:
                found = document.status(answer.facts, answer.verdict)
                return Reply(HTTPStatus.OK, JSON, _json(found))
            case "/status.json":
                return Reply(HTTPStatus.SERVICE_UNAVAILABLE, JSON, _json({"verdict": None}))
            case "/":
                return Reply(HTTPStatus.OK, HTML, page.page(answer, self.state.changes).encode())
            case "/fragment":
                return Reply(HTTPStatus.OK, HTML, page.fragment(answer, self.state.changes).encode())
        return Reply(HTTPStatus.NOT_FOUND, PLAIN, b"try / /metrics /healthz /readyz /status.json\n")

    def _health(self, good: bool, word: str) -> Reply:
        status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
        return Reply(status, PLAIN, f"{word}\n".encode() if good else f"not {word}\n".encode())


def _json(content: object) -> bytes:
    return json.dumps(content, default=str, ensure_ascii=False).encode()


def address(text: str) -> tuple[str, int]:
    """Read HOST:PORT; an IPv6 host stands in brackets. Raises UsageError."""
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise UsageError(f"{text!r} is not HOST:PORT", where="--serve", remedy="for example 127.0.0.1:9187")
    return host.strip("[]") or "0.0.0.0", int(port)


class StatusServer:
    """An HTTP server with its own threads; it serves while it is open."""

    def __init__(self, site: StatusPages, host: str, port: int) -> None:
        try:
            self._http = HttpPort((host, port), _handler(site))
        except OSError as error:
            raise Failed(
                f"cannot listen on {host}:{port}: {error.strerror or error}",
                where="--serve",
                remedy="take another port, or stop what listens there",
            ) from error
        self._thread = threading.Thread(target=self._http.serve_forever, name="serve", daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self._http.server_address[:2]
        return f"http://{host if isinstance(host, str) else host.decode()}:{port}/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()


def _handler(site: StatusPages) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version = "outboxctl"
        sys_version = ""
        timeout = REQUEST_SECONDS
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(with_body=True)

        def do_HEAD(self) -> None:
            self._send(with_body=False)

        def _send(self, *, with_body: bool) -> None:
            reply = site.reply(self.path)
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.kind)
            self.send_header("Content-Length", str(len(reply.body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            if with_body:
                self.wfile.write(reply.body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: scrapes are frequent."""

    return Handler
