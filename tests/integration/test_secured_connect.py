"""A Connect cluster as it stands in production: behind TLS, Basic auth and a path prefix."""

from __future__ import annotations

import base64
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests

from fix_provision import Pipeline
from fix_stack import Stack
from waiting import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.stack,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl"),
]

PREFIX = "/connect"
USER, PASSWORD = "operator", "sécret: with a colon"


class Gate(ThreadingHTTPServer):
    """Lets requests with the right credentials through to a real worker."""

    daemon_threads = True
    worker: str

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep quiet about handshakes that fail."""


class Keeper(BaseHTTPRequestHandler):
    """Answers 401 to everybody else, and 404 outside the prefix."""

    server: Gate

    def pass_on(self) -> None:
        expected = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self.headers.get("Authorization") != expected:
            self.answer(401, b"<html>who are you?</html>", "text/html")
        elif not self.path.startswith(PREFIX + "/"):
            self.answer(404, b"<html>nothing here</html>", "text/html")
        else:
            self.forward(self.path.removeprefix(PREFIX))

    do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = pass_on

    def forward(self, path: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        kind = {"Content-Type": self.headers.get("Content-Type", "application/json")}
        answer = requests.request(
            self.command, self.server.worker + path, data=body, headers=kind, timeout=PATIENCE_SECONDS
        )
        self.answer(answer.status_code, answer.content, answer.headers.get("Content-Type", "text/plain"))

    def answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@dataclass(frozen=True, slots=True)
class Secured:
    url: str
    ca_file: str


@pytest.fixture
def secured(stack: Stack, tmp_path: Path) -> Iterator[Secured]:
    folder = tmp_path / "tls"
    folder.mkdir()
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=connect"
        f" -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}".split(),
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    gate = Gate(("127.0.0.1", 0), Keeper)
    gate.worker = stack.connect_url
    gate.socket = context.wrap_socket(gate.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=gate.serve_forever, args=(0.01,), daemon=True).start()
    yield Secured(f"https://127.0.0.1:{gate.server_port}{PREFIX}", str(certificate))
    gate.shutdown()
    gate.server_close()


def test_the_whole_life_of_a_pipeline_goes_through(own_pipeline: Pipeline, secured: Secured) -> None:
    auth = {"user": USER, "password": PASSWORD, "ca_file": secured.ca_file}
    behind = own_pipeline.changed(connect={"url": secured.url, "auth": auth})
    assert behind.run("apply", "--no-wait").code == 0
    assert behind.plan() == {}
    status = behind.run("--json", "connectors", "status").document()
    assert status["name"] == own_pipeline.site.definition.connect.connector
    assert behind.run("connectors", "pause").code == 0
    assert behind.run("connectors", "resume", "--wait", "0").code == 0
    done = behind.run("--json", "destroy", "--yes").document()["objects"]
    assert done[0]["action"] == "removed"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"password": "wrong"}, "refuses us (401); check connect.auth"),
        ({"ca_file": ""}, "certificate verify failed"),
    ],
)
def test_without_the_right_words_it_is_one_line(
    untouched: Pipeline, secured: Secured, change: dict[str, str], complaint: str
) -> None:
    auth = {"user": USER, "password": PASSWORD, "ca_file": secured.ca_file, **change}
    if not auth["ca_file"]:
        del auth["ca_file"]
    answer = untouched.changed(connect={"url": secured.url, "auth": auth}).run("connectors", "list")
    assert answer.code == 6
    assert complaint in answer.err
    assert answer.err.count("\n") == 1
    assert PASSWORD not in answer.err


def test_another_prefix_is_told(untouched: Pipeline, secured: Secured) -> None:
    auth = {"user": USER, "password": PASSWORD, "ca_file": secured.ca_file}
    url = secured.url.removesuffix(PREFIX)
    answer = untouched.changed(connect={"url": url, "auth": auth}).run("connectors", "list")
    assert answer.code == 6
    assert "check connect.url and its path prefix" in answer.err
