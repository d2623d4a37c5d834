"""How the client meets workers that rebalance, start, redirect, refuse, or are something else.

The server here answers HTTP and nothing more: it knows nothing of Kafka Connect, whose behaviour
is tested against the real one.
"""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from outbox_connectors.definition import Connect, ConnectAuth, Secret
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.connect.transport import NotKafkaConnect
from outbox_pipeline.errors import (
    AccessDenied,
    DefinitionError,
    ExitCode,
    Failed,
    LoginFailed,
    OutboxError,
    Unreachable,
)

Scripted = tuple[int, str, str]  # status, content type, body
WORKER: Scripted = (200, "application/json", json.dumps({"version": "4.3.1", "kafka_cluster_id": "k"}))
REBALANCE: Scripted = (
    409,
    "application/json",
    json.dumps({"error_code": 409, "message": "Cannot complete request because of a conflicting operation"}),
)


@dataclass(slots=True)
class Script:
    """What the server answers, one after the other (the last for ever), and what it was asked."""

    answers: list[Scripted]
    url: str = ""
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)

    def next(self) -> Scripted:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


Serve = Callable[..., Script]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[ThreadingHTTPServer] = []

    def start(*answers: Scripted) -> Script:
        script = Script(list(answers))

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                script.requests.append((self.command, self.path, dict(self.headers)))
                status, kind, body = script.next()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Location", "http://elsewhere.invalid/")
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = answer

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        script.url = f"http://127.0.0.1:{server.server_port}"
        return script

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleeps: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds

    def clock(self) -> float:
        return self.now


def client(
    url: str, *, auth: ConnectAuth | None = None, time: Time | None = None, timeout: float = 5
) -> ConnectClient:
    time = time or Time()
    connect = Connect(url=url, connector="shop", auth=auth or ConnectAuth(), config={})
    return ConnectClient(connect, timeout=timeout, sleep=time.sleep, clock=time.clock)


def failure(url: str, *, time: Time | None = None, timeout: float = 5) -> OutboxError:
    with client(url, time=time, timeout=timeout) as connect, pytest.raises(OutboxError) as caught:
        connect.worker()
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_rebalance_is_waited_out_with_growing_delay(serve: Serve) -> None:
    script, time = serve(REBALANCE, REBALANCE, REBALANCE, WORKER), Time()
    with client(script.url, time=time) as connect:
        assert connect.worker().version == "4.3.1"
    assert time.sleeps == [0.1, 0.2, 0.4]


def test_a_rebalance_without_end_is_unreachable(serve: Serve) -> None:
    time = Time()
    error = failure(serve(REBALANCE).url, time=time)
    assert isinstance(error, Unreachable)
    assert "still rebalancing" in str(error)
    assert 60 <= sum(time.sleeps) < 70
    assert max(time.sleeps) == 5.0


def test_a_connector_that_exists_is_no_rebalance(serve: Serve) -> None:
    body = json.dumps({"error_code": 409, "message": "Connector shop already exists"})
    script, time = serve((409, "application/json", body)), Time()
    with client(script.url, time=time) as connect, pytest.raises(Failed, match="already exists"):
        connect.create("shop", {})
    assert time.sleeps == []


def test_a_worker_that_starts_is_waited_for(serve: Serve) -> None:
    starting = (503, "application/json", json.dumps({"status": "starting", "message": "Worker is starting"}))
    with client(serve(starting, WORKER).url) as connect:
        assert connect.worker().kafka_cluster_id == "k"


def test_a_worker_whose_web_server_is_up_first_is_waited_for(serve: Serve) -> None:
    body = json.dumps({"message": "Not Found", "url": "/", "status": "404"})
    with client(serve((404, "application/json", body), WORKER).url) as connect:
        assert connect.worker().kafka_cluster_id == "k"


def test_a_worker_that_cannot_reach_its_leader_says_so(serve: Serve) -> None:
    body = json.dumps({"error_code": 500, "message": "IO Error trying to forward REST request: refused"})
    error = failure(serve((500, "application/json", body)).url)
    assert isinstance(error, Unreachable)
    assert "cannot reach the leader" in error.problem
    assert "rest.advertised.host.name" in error.remedy


@pytest.mark.parametrize("status", [200, 404, 502])
def test_a_page_is_not_kafka_connect(serve: Serve, status: int) -> None:
    error = failure(serve((status, "text/html; charset=utf-8", "<html>\nnginx</html>")).url + "/prefix")
    assert isinstance(error, NotKafkaConnect)
    assert error.problem == f"answers GET / with {status} and text/html, not with JSON"
    assert "path prefix" in error.remedy


def test_bare_json_is_not_kafka_connect(serve: Serve) -> None:
    error = failure(serve((200, "application/json", "null")).url)
    assert isinstance(error, NotKafkaConnect)
    assert "something else listens there" in error.remedy


def test_a_wrong_path_prefix_is_told_apart_from_an_absent_connector(serve: Serve) -> None:
    body = json.dumps({"error_code": 404, "message": "HTTP 404 Not Found"})
    error = failure(serve((404, "application/json", body)).url + "/wrong")
    assert isinstance(error, NotKafkaConnect)
    assert "no Kafka Connect under this path" in error.problem


def test_a_path_prefix_stands_before_every_path(serve: Serve) -> None:
    script = serve(WORKER)
    with client(f"{script.url}/kafka/connect/") as connect:
        connect.worker()
    assert script.requests[0][1] == "/kafka/connect/"


@pytest.mark.parametrize(("status", "kind"), [(401, LoginFailed), (403, AccessDenied)])
def test_a_refusal_points_at_the_credentials_and_shows_none(
    serve: Serve, status: int, kind: type[Unreachable]
) -> None:
    url = serve((status, "text/html", "no")).url.replace("http://", "http://ann:hunter2@")
    error = failure(url)
    assert type(error) is kind
    assert error.exit_code is ExitCode.UNREACHABLE
    assert f"refuses us ({status})" in error.problem
    assert "hunter2" not in str(error)
    assert "ann" not in str(error)


def test_a_redirect_is_not_followed(serve: Serve) -> None:
    assert "redirects" in failure(serve((302, "text/html", "")).url).problem


def test_credentials_of_the_definition_are_sent_as_basic_auth(serve: Serve) -> None:
    script = serve(WORKER)
    with client(script.url, auth=ConnectAuth(user="ann", password=Secret("pä:ss"))) as connect:
        connect.worker()
    expected = base64.b64encode("ann:pä:ss".encode()).decode()
    assert script.requests[0][2]["Authorization"] == f"Basic {expected}"


def test_credentials_of_the_url_are_sent_as_basic_auth(serve: Serve) -> None:
    script = serve(WORKER)
    with client(script.url.replace("http://", "http://ann:a%40b@")) as connect:
        connect.worker()
    assert script.requests[0][2]["Authorization"] == f"Basic {base64.b64encode(b'ann:a@b').decode()}"


def test_a_bearer_token_is_sent(serve: Serve) -> None:
    script = serve(WORKER)
    with client(script.url, auth=ConnectAuth(bearer=Secret("t0ken"))) as connect:
        connect.worker()
    assert script.requests[0][2]["Authorization"] == "Bearer t0ken"


def test_a_name_is_quoted_in_the_path(serve: Serve) -> None:
    script = serve((200, "application/json", "{}"))
    with client(script.url) as connect:
        connect.config("a/b c")
    assert script.requests[0][1] == "/connectors/a%2Fb%20c/config"


def test_a_refused_connection_names_the_address_without_credentials() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        error = failure(f"http://ann:hunter2@127.0.0.1:{unused.getsockname()[1]}")
    assert isinstance(error, Unreachable)
    assert error.problem == "does not answer: Connection refused"
    assert "http://127.0.0.1:" in error.where
    assert "hunter2" not in str(error)


def test_an_unknown_host_is_named() -> None:
    error = failure("http://connect.invalid:8083")
    assert isinstance(error, Unreachable)
    assert "not known" in error.problem
    assert "connect.invalid" in error.where


def test_a_silent_server_is_left_after_the_time_out() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        error = failure(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.2)
    assert isinstance(error, Unreachable)
    assert "no answer to GET / within" in error.problem


def test_a_server_that_hangs_up_is_described() -> None:
    with socket.socket() as rude:
        rude.bind(("127.0.0.1", 0))
        rude.listen()

        def hang_up() -> None:
            connection, _ = rude.accept()
            connection.recv(1000)
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        error = failure(f"http://127.0.0.1:{rude.getsockname()[1]}")
        thread.join()
    assert isinstance(error, Unreachable)
    assert "connection closed without an answer" in error.problem


def test_tls_towards_a_plain_server_is_explained(serve: Serve) -> None:
    error = failure(serve(WORKER).url.replace("http://", "https://"))
    assert isinstance(error, Unreachable)
    assert "TLS failed" in error.problem


@pytest.mark.parametrize(
    "url", ["connect:8083", "ftp://connect", "http://", "http://h:port", "http://h:99999", "http://[::1", ""]
)
def test_an_address_that_is_none_is_the_definitions_fault(url: str) -> None:
    with pytest.raises(DefinitionError, match=r"connect\.url"):
        client(url)


def test_a_missing_tls_file_is_named() -> None:
    with pytest.raises(DefinitionError, match=r"ca_file: no such file: /nowhere/ca\.pem"):
        client("https://connect:8083", auth=ConnectAuth(ca_file="/nowhere/ca.pem"))


def test_a_new_connector_has_a_status_a_little_later(serve: Serve) -> None:
    none_yet = (404, "application/json", json.dumps({"error_code": 404, "message": "No status found"}))
    config = (200, "application/json", json.dumps({"name": "shop"}))
    running = {"name": "shop", "connector": {"state": "RUNNING", "worker_id": "w"}, "tasks": []}
    script = serve(none_yet, config, none_yet, config, (200, "application/json", json.dumps(running)))
    with client(script.url) as connect:
        status = connect.status("shop")
    assert status is not None
    assert status.state == "RUNNING"


def test_a_connector_that_is_not_there_has_no_status(serve: Serve) -> None:
    absent = (404, "application/json", json.dumps({"error_code": 404, "message": "Connector x not found"}))
    with client(serve(absent).url) as connect:
        assert connect.status("x") is None


def test_a_deleted_connector_is_gone_when_it_has_no_status_either(serve: Serve) -> None:
    absent = (404, "application/json", json.dumps({"error_code": 404, "message": "Connector shop not found"}))
    left = {"name": "shop", "connector": {"state": "UNASSIGNED", "worker_id": "w"}, "tasks": []}
    stale = (200, "application/json", json.dumps(left))
    script = serve((204, "application/json", ""), stale, stale, absent)
    with client(script.url) as connect:
        connect.delete("shop")
        assert connect.status("shop") is None
    assert [path for _, path, _ in script.requests].count("/connectors/shop/status") == 4


def test_a_refused_configuration_is_one_line(serve: Serve) -> None:
    message = (
        "Connector configuration is invalid and contains the following 2 error(s):\nA is wrong\nB is wrong\n"
        "You can also find the above list of errors at the endpoint `/connector-plugins/x/config/validate`"
    )
    body = json.dumps({"error_code": 400, "message": message})
    with client(serve((400, "application/json", body)).url) as connect, pytest.raises(Failed) as caught:
        connect.put_config("shop", {})
    assert caught.value.problem == "connector shop is refused: A is wrong; B is wrong"
