"""Decide when a change of verdict is notified, and send it: no flapping, no needless repetition."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from outbox_connectors.findings import Severity
from outbox_pipeline.errors import Failed, UsageError
from outbox_pipeline.watch.verdict import Verdict, VerdictKey

SETTLE_SECONDS = 10.0  # a verdict must last this long before it is notified
REPEAT_SECONDS = 4 * 3600.0  # what is still wrong is notified again
STORM_SECONDS = 60.0  # between two messages, unless it gets worse
COMMAND_SECONDS = 30.0
WEBHOOK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class NotificationState:
    """The last notification, and the verdict that may be notified next."""

    notified: VerdictKey | None = None
    severity: Severity = Severity.OK
    notified_at: float = float("-inf")
    seen: VerdictKey | None = None
    seen_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Notice:
    """A notification: the present verdict and the one notified before."""

    now: Verdict
    before: VerdictKey | None
    repeated: bool


def decide(
    state: NotificationState, at: float, verdict: Verdict, *, repeat_seconds: float = REPEAT_SECONDS
) -> tuple[NotificationState, Notice | None]:
    """Decide whether to notify. Pure; call it with every verdict.

    A verdict is notified once it has lasted SETTLE_SECONDS, a critical one at once. All verdicts of severity
    ok count as one: a change between healthy, idle and catching up is not notified. A flapping verdict
    is notified at most once in STORM_SECONDS, unless it gets worse.
    """
    key = _reported_key(verdict)
    if state.seen is not key:
        state = replace(state, seen=key, seen_at=at)
    worse = _rank(verdict.severity) > _rank(state.severity)
    if key is state.notified and not worse:
        wrong = verdict.severity is not Severity.OK
        if wrong and at - state.notified_at >= repeat_seconds:
            return _notified(state, at, verdict, key), Notice(verdict, state.notified, True)
        return state, None
    if state.notified is None and verdict.severity is Severity.OK:
        return _notified(state, float("-inf"), verdict, key), None  # a healthy start is not notified
    settled = at - state.seen_at >= SETTLE_SECONDS
    calm = at - state.notified_at >= STORM_SECONDS
    if (worse and verdict.severity is Severity.CRITICAL) or (settled and calm):
        return _notified(state, at, verdict, key), Notice(verdict, state.notified, False)
    return state, None


def _notified(state: NotificationState, at: float, verdict: Verdict, key: VerdictKey) -> NotificationState:
    return replace(state, notified=key, severity=verdict.severity, notified_at=at)


def _reported_key(verdict: Verdict) -> VerdictKey:
    return VerdictKey.HEALTHY if verdict.severity is Severity.OK else verdict.key


def _rank(severity: Severity) -> int:
    return list(Severity).index(severity)


def document(notice: Notice, status: Mapping[str, Any]) -> dict[str, Any]:
    """Build the JSON document for the standard input of the --on-change command."""
    return {
        "event": "repeat" if notice.repeated else "change",
        "before": notice.before.value if notice.before else None,
        **status,
    }


def text(notice: Notice, pipeline: str) -> str:
    """Write the notification for people, in one or two lines."""
    verdict = notice.now
    again = "still " if notice.repeated else ""
    first = f"[{verdict.severity.value}] pipeline {pipeline}: {again}{verdict.key.value}: {verdict.cause}"
    return f"{first}\nNext: {verdict.next_step}" if verdict.next_step else first


def run_command(command: str, content: Mapping[str, Any]) -> None:
    """Run a shell command with the document on its standard input. Raises Failed; ends it after 30 s."""
    try:
        done = subprocess.run(
            command,
            shell=True,
            input=json.dumps(content, default=str).encode(),
            capture_output=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"the command did not end within {COMMAND_SECONDS:g} s", where="--on-change") from error
    if done.returncode != 0:
        stderr = " ".join(done.stderr.decode(errors="replace").split())[-200:]
        raise Failed(f"the command exited with {done.returncode}: {stderr}", where="--on-change")


def check_webhook(url: str) -> str:
    """Return the URL if it can be one. Raises UsageError; never repeats the URL, which may hold a token."""
    split = urlsplit(url)
    if split.scheme not in ("http", "https") or not split.hostname:
        raise UsageError("this is not an http:// or https:// address", where="--notify")
    return url


def post(url: str, message: str) -> None:
    """Post a message in the format of Slack and compatible webhooks: `{"text": ...}`. Raises Failed."""
    body = json.dumps({"text": message}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    host = urlsplit(url).hostname
    try:
        with urllib.request.urlopen(request, timeout=WEBHOOK_SECONDS) as answer:
            answer.read(1024)
    except urllib.error.HTTPError as error:
        error.close()
        raise Failed(f"{host} answers {error.code}", where="--notify") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise Failed(f"{host} cannot be reached: {reason}", where="--notify") from error
