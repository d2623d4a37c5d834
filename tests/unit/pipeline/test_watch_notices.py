"""Who is told when: at once where it is critical, not at every flicker, again while it stays wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from outbox_pipeline.errors import Failed, UsageError
from outbox_pipeline.watch import notify
from outbox_pipeline.watch.notify import Notice, NotificationState, decide
from outbox_pipeline.watch.verdict import Unseen, Verdict, VerdictKey
from watch_samples import HEALTHY, verdict, with_connect, with_postgres, with_slot

FINE = verdict(HEALTHY)
PAUSED = verdict(with_connect(HEALTHY, state="PAUSED"))
STOPPED = verdict(with_connect(HEALTHY, state="STOPPED"))
LOST = verdict(with_slot(HEALTHY, wal_status="lost", invalidation_reason="wal_removed"))
MISSING = verdict(with_postgres(HEALTHY, slots=(), senders=()))


def told(*steps: tuple[float, Verdict], repeat: float = 3600.0) -> list[tuple[float, str, bool]]:
    """Every message of a course of verdicts: when, what, whether it is a repetition."""
    telling, said = NotificationState(), []
    for at, now in steps:
        telling, notice = decide(telling, at, now, repeat_seconds=repeat)
        if notice is not None:
            said.append((at, notice.now.key.value, notice.repeated))
    return said


def every(seconds: float, end: float, now: Verdict, start: float = 0.0) -> list[tuple[float, Verdict]]:
    steps = int((end - start) / seconds)
    return [(start + seconds * n, now) for n in range(steps)]


def test_all_well_is_no_news() -> None:
    assert told(*every(5, 600, FINE)) == []


def test_a_warning_is_told_once_it_has_settled() -> None:
    assert told((0, FINE), *every(2, 100, PAUSED, 2)) == [(12, "connector_paused", False)]


def test_a_critical_verdict_is_told_at_once() -> None:
    assert told((0, FINE), (2, LOST)) == [(2, "slot_lost", False)]


def test_a_blink_is_not_told() -> None:
    assert told((0, FINE), (2, PAUSED), (4, FINE), (6, PAUSED), (8, FINE)) == []


def test_it_is_told_again_while_it_stays_wrong_and_when_it_is_over() -> None:
    steps = [*every(10, 250, LOST), *every(10, 400, FINE, 250)]
    assert told(*steps, repeat=100) == [
        (0, "slot_lost", False),
        (100, "slot_lost", True),
        (200, "slot_lost", True),
        (260, "healthy", False),
    ]


def test_a_flapping_verdict_makes_no_storm() -> None:
    flapping = [(5.0 * n, PAUSED if n // 3 % 2 else FINE) for n in range(720)]
    assert len(told((0, FINE), *flapping)) <= 61


def test_two_critical_causes_in_turn_make_no_storm() -> None:
    assert len(told(*((2.0 * n, LOST if n % 2 else MISSING) for n in range(300)))) <= 11


def test_getting_worse_is_told_at_once() -> None:
    said = told((0, FINE), *every(2, 20, PAUSED, 2), (20, LOST))
    assert said[-1] == (20, "slot_lost", False)


def test_kinds_of_fine_do_not_alternate() -> None:
    idle = replace(FINE, key=VerdictKey.IDLE)
    assert told(*((20.0 * n, idle if n % 2 else FINE) for n in range(20))) == []


def test_the_text_has_cause_and_next_step() -> None:
    text = notify.text(Notice(STOPPED, VerdictKey.HEALTHY, False), "shop")
    assert text.startswith("[warning] pipeline shop: connector_stopped: ")
    assert "outboxctl connectors resume" in text


def test_a_command_gets_the_document(tmp_path: Path) -> None:
    file = tmp_path / "got.json"
    notify.run_command(
        f"cat > {file}", notify.document(Notice(LOST, VerdictKey.HEALTHY, False), {"verdict": "slot_lost"})
    )
    assert json.loads(file.read_text()) == {"event": "change", "before": "healthy", "verdict": "slot_lost"}


def test_a_command_that_fails_is_one_line() -> None:
    with pytest.raises(Failed, match="exited with 3: no"):
        notify.run_command("echo no >&2; exit 3", {})


@pytest.mark.parametrize("url", ["ftp://x", "hook", "http:///x"])
def test_a_wrong_webhook_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        notify.check_webhook(url)
    assert url not in str(caught.value)


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[bytes]]]:
    got: list[bytes] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(404 if self.path == "/wrong" else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_webhook_gets_text(webhook: tuple[str, list[bytes]]) -> None:
    url, got = webhook
    notify.post(f"{url}/services/secret", "hello")
    assert json.loads(got[0]) == {"text": "hello"}


def test_a_webhook_that_refuses_never_shows_its_token(webhook: tuple[str, list[bytes]]) -> None:
    url, _ = webhook
    with pytest.raises(Failed, match="404") as caught:
        notify.post(f"{url}/wrong", "hello")
    assert "/wrong" not in str(caught.value)
    with pytest.raises(Failed, match="cannot be reached"):
        notify.post("http://127.0.0.1:1/token", "hello")
    assert Unseen("kafka", "x").reason == "x"
