"""Talk HTTP to a Kafka Connect worker: authentication, time-outs, patience, and one line per failure."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import requests
from requests.auth import AuthBase, HTTPBasicAuth

from outbox_connectors import backoff
from outbox_connectors.definition import Connect, ConnectAuth
from outbox_pipeline.errors import AccessDenied, DefinitionError, Failed, LoginFailed, Unreachable

CONNECT_SECONDS = 5.0
FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 5.0

_FORWARD = "IO Error trying to forward REST request"
_REBALANCE = "a rebalance is expected"  # comes with 500 right after a worker's start (measured on 4.3.1)
_TIMED_OUT = "Request timed out"
_NO_SUCH_PATH = "HTTP 404 Not Found"  # Jersey's own words; Connect's 404s name the connector


class NotKafkaConnect(Unreachable):
    """Another service answers at connect.url, or Kafka Connect is not at its path."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A status code and the JSON that came with it (None for an empty body)."""

    status: int
    body: Any

    @property
    def lines(self) -> list[str]:
        """Connect's error text, line by line."""
        text = self.body.get("message") if isinstance(self.body, Mapping) else None
        return [line.strip() for line in str(text or f"HTTP {self.status}").splitlines() if line.strip()]

    @property
    def message(self) -> str:
        """Connect's error text in one line."""
        return " ".join(self.lines)


class _Bearer(AuthBase):
    """Send a bearer token. An auth object also keeps requests from looking into ~/.netrc."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, r: requests.PreparedRequest) -> requests.PreparedRequest:
        r.headers["Authorization"] = f"Bearer {self._token}"
        return r


class Transport:
    """A session with one Connect cluster. Not for use by several threads at once."""

    def __init__(
        self,
        connect: Connect,
        *,
        timeout: float,
        patience: float,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        split = _address(connect.url)
        self.url = _without_credentials(split)
        self.where = f"Kafka Connect at {self.url}"
        self.clock, self.sleep = clock, sleep
        self._timeout, self._patience = timeout, patience
        self._session = requests.Session()
        self._session.auth = _authentication(connect.auth, split.username, split.password)
        self._verify: bool | str = _file("ca_file", connect.auth.ca_file) or True
        certificate = _file("cert_file", connect.auth.cert_file)
        if certificate:
            key = _file("key_file", connect.auth.key_file)
            self._session.cert = (certificate, key) if key else certificate

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def send(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        params: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> HttpAnswer:
        """Send one request; the caller gets 2xx, 400 and 404 to judge, the rest is dealt with here.

        Waits, with growing delay, while the workers rebalance (409), start (503) or cannot reach
        their leader (500), at most `patience` seconds. Raises Unreachable when nobody answers,
        NotKafkaConnect when the answer is not Kafka Connect's, LoginFailed or AccessDenied when it rejects
        us, and Failed for other errors.
        """
        deadline, delays = self.clock() + self._patience, growing_delays()
        while True:
            answer = self._once(method, path, body, params, timeout or self._timeout)
            if not _passing(answer):
                return self._judged(answer)
            if self.clock() >= deadline:
                raise self._unreachable(_still(answer), _remedy_of(answer))
            self.sleep(next(delays))

    def _once(
        self, method: str, path: str, body: object, params: Mapping[str, str] | None, timeout: float
    ) -> HttpAnswer:
        try:
            response = self._session.request(
                method,
                self.url + path,
                json=body,
                params=params,
                timeout=(min(CONNECT_SECONDS, timeout), timeout),
                allow_redirects=False,
                # Given per request: a session's own value loses against REQUESTS_CA_BUNDLE.
                verify=self._verify,
                headers={"Accept": "application/json"},
            )
        except requests.exceptions.SSLError as error:
            raise self._unreachable(
                f"TLS failed: {_reason(error)}",
                "check connect.auth.ca_file, and connect.auth.cert_file where the server asks for one",
            ) from error
        except requests.exceptions.ReadTimeout as error:
            problem = f"no answer to {method} {path} within {timeout:g} s"
            raise self._unreachable(
                problem, "look at the worker's log: without its Kafka it does not answer"
            ) from error
        except requests.exceptions.RequestException as error:
            problem = f"does not answer: {_reason(error)}"
            raise self._unreachable(problem, "check connect.url and that the worker runs") from error
        return self._read(method, path, response)

    def _read(self, method: str, path: str, response: requests.Response) -> HttpAnswer:
        if response.status_code in (401, 403):
            rejection = LoginFailed if response.status_code == 401 else AccessDenied
            problem = f"refuses us ({response.status_code})"
            raise rejection(problem, where=self.where, remedy="check connect.auth")
        if 300 <= response.status_code < 400:
            raise self._unreachable("redirects elsewhere", "put the final address into connect.url")
        if not response.content:
            return HttpAnswer(response.status_code, None)
        try:
            body = response.json()
        except requests.exceptions.JSONDecodeError as error:
            kind = response.headers.get("Content-Type", "no type").partition(";")[0]
            raise self._foreign(method, path, response, f"{kind}, not with JSON") from error
        if not isinstance(body, dict | list):
            raise self._foreign(method, path, response, "a bare value, which Connect never does")
        return HttpAnswer(response.status_code, body)

    def _foreign(self, method: str, path: str, response: requests.Response, what: str) -> NotKafkaConnect:
        problem = f"answers {method} {path or '/'} with {response.status_code} and {what}"
        return NotKafkaConnect(
            problem,
            where=self.where,
            remedy="something else listens there: check connect.url and its path prefix",
        )

    def _judged(self, answer: HttpAnswer) -> HttpAnswer:
        if answer.status == 404 and answer.message == _NO_SUCH_PATH:
            problem = "there is no Kafka Connect under this path"
            raise NotKafkaConnect(problem, where=self.where, remedy="check the path of connect.url")
        if answer.status < 300 or answer.status in (400, 404):
            return answer
        if answer.status == 500 and answer.message.startswith(_TIMED_OUT):
            raise self._unreachable(answer.message, "look at the worker's log")
        raise Failed(answer.message, where=self.where)

    def _unreachable(self, problem: str, remedy: str) -> Unreachable:
        return Unreachable(problem, where=self.where, remedy=remedy)


def _address(url: str) -> SplitResult:
    """Take an address apart; its text is not repeated in the error, it may hold a password."""
    try:
        split = urlsplit(url)
        usable = split.scheme in ("http", "https") and bool(split.hostname) and split.port != 0
    except ValueError:  # a port that is no number, a broken IPv6 address
        usable = False
    if not usable:
        raise DefinitionError("connect.url is not an http:// or https:// address")
    return split


def _without_credentials(split: SplitResult) -> str:
    hostname = split.hostname or ""
    host = f"[{hostname}]" if ":" in hostname else hostname
    port = f":{split.port}" if split.port else ""
    return f"{split.scheme}://{host}{port}{split.path.rstrip('/')}"


def growing_delays() -> Iterator[float]:
    """Give the pauses between attempts: 0.1 s, doubling, at most 5 s."""
    for attempt in itertools.count(1):
        yield backoff.delay(attempt, FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS)


def _passing(answer: HttpAnswer) -> bool:
    """Tell whether the same request may succeed in a moment."""
    if answer.status == 409:
        return "already exists" not in answer.message
    if answer.status == 500:
        return answer.message.startswith(_FORWARD) or _REBALANCE in answer.message
    return answer.status == 503 or _before_its_resources(answer)


def _before_its_resources(answer: HttpAnswer) -> bool:
    """Tell a 404 of the web server, which listens before Connect does, from one of Connect itself.

    Connect's errors carry `error_code`; Jetty's carry `url` and `status` (measured on Kafka 4.3.1, in
    the seconds of a worker's start).
    """
    return answer.status == 404 and isinstance(answer.body, Mapping) and "error_code" not in answer.body


def _still(answer: HttpAnswer) -> str:
    if answer.message.startswith(_FORWARD):
        return "the worker cannot reach the leader of its cluster"
    return f"still {'rebalancing' if answer.status in (409, 500) else 'not ready'}: {answer.message}"


def _remedy_of(answer: HttpAnswer) -> str:
    if answer.status == 500:
        return "rest.advertised.host.name and port of each worker must be reachable from the others"
    return "try again when its workers are settled"


def _authentication(auth: ConnectAuth, url_user: str | None, url_password: str | None) -> AuthBase | None:
    if auth.bearer:
        return _Bearer(auth.bearer.value)
    if auth.user:
        return HTTPBasicAuth(auth.user.encode(), auth.password.value.encode())
    if url_user:
        return HTTPBasicAuth(unquote(url_user).encode(), unquote(url_password or "").encode())
    return None


def _file(name: str, path: str) -> str:
    if path and not os.path.exists(path):
        raise DefinitionError(f"connect.auth.{name}: no such file: {path}")
    return path


def _reason(error: BaseException) -> str:
    """Find the words of the operating system or of OpenSSL inside the layers around them."""
    for inner in _layers(error):
        if isinstance(inner, OSError) and inner.strerror:
            return str(inner.strerror).partition(" (_ssl.c")[0]
    text = str(error)
    if "timed out" in text:
        return "connection timed out"
    if "Connection aborted" in text:
        return "connection closed without an answer"
    return "name or service not known" if "resolve" in text else type(error).__name__


def _layers(error: BaseException) -> Iterator[BaseException]:
    pending, seen = [error], set[int]()
    while pending:
        inner = pending.pop()
        if id(inner) in seen:
            continue
        seen.add(id(inner))
        yield inner
        around = (inner.__cause__, inner.__context__, getattr(inner, "reason", None), *inner.args)
        pending.extend(layer for layer in reversed(around) if isinstance(layer, BaseException))
