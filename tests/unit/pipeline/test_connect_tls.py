"""TLS towards Kafka Connect: the authority, the client's certificate, and what is said without them."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from outbox_connectors.definition import Connect, ConnectAuth
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.errors import Unreachable

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")


class Worker(BaseHTTPRequestHandler):
    """Answers as a worker's root does."""

    def do_GET(self) -> None:
        body = b'{"version": "4.3.1", "kafka_cluster_id": "k"}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Keeps quiet about handshakes that fail."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=connect"
        f" -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {cert}".split(),
        check=True,
        capture_output=True,
    )
    return cert, key


@pytest.fixture(params=["anybody", "client certificate"])
def url(request: pytest.FixtureRequest, certificate: tuple[Path, Path]) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    if request.param != "anybody":
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificate[0])
    server = Server(("127.0.0.1", 0), Worker)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def client(url: str, auth: ConnectAuth) -> ConnectClient:
    return ConnectClient(Connect(url=url, connector="shop", auth=auth, config={}), timeout=5)


def test_the_files_of_the_definition_are_used(url: str, certificate: tuple[Path, Path]) -> None:
    cert, key = (str(path) for path in certificate)
    with client(url, ConnectAuth(ca_file=cert, cert_file=cert, key_file=key)) as connect:
        assert connect.worker().version == "4.3.1"


def test_an_unknown_authority_is_named(url: str) -> None:
    with client(url, ConnectAuth()) as connect, pytest.raises(Unreachable) as caught:
        connect.worker()
    assert "TLS failed: " in str(caught.value)
    assert "certificate verify failed" in str(caught.value)
    assert "connect.auth.ca_file" in str(caught.value)


def test_the_definition_wins_over_the_environment(
    url: str, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """requests would let REQUESTS_CA_BUNDLE win over a session's own authority."""
    cert, key = (str(path) for path in certificate)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "missing.pem"))
    with client(url, ConnectAuth(ca_file=cert, cert_file=cert, key_file=key)) as connect:
        assert connect.worker().version == "4.3.1"


@pytest.mark.parametrize("url", ["client certificate"], indirect=True)
def test_a_server_that_wants_a_certificate_says_so(url: str, certificate: tuple[Path, Path]) -> None:
    with (
        client(url, ConnectAuth(ca_file=str(certificate[0]))) as connect,
        pytest.raises(Unreachable) as caught,
    ):
        connect.worker()
    assert "TLS failed: " in str(caught.value), str(caught.value)
    assert "connect.auth.cert_file" in str(caught.value)
