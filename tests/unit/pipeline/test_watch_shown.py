"""How an answer looks: text, terminal, page, HTTP; and what must never be in it."""

from __future__ import annotations

import io
import json
import re
import socket
import urllib.error
import urllib.request
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

from outbox_pipeline.errors import Failed, UsageError
from outbox_pipeline.watch import document, formatting, history, page, stages, view
from outbox_pipeline.watch.assess import verdict_of
from outbox_pipeline.watch.facts import facts_of
from outbox_pipeline.watch.latency import LatencyProbe
from outbox_pipeline.watch.long_running import WatchState
from outbox_pipeline.watch.one_shot import Assessment
from outbox_pipeline.watch.sample import GroupSample, KafkaSample, Sample
from outbox_pipeline.watch.serve import StatusPages, StatusServer, address
from outbox_pipeline.watch.thresholds import Thresholds
from outbox_pipeline.watch.verdict import Unseen, VerdictKey
from watch_samples import HEALTHY, MIB, NAMES, history_of, later, with_connect, with_slot


def answer_of(*samples: Sample) -> Assessment:
    *past, present = samples
    facts = facts_of(history_of([*past, present]), present, Thresholds())
    return Assessment(facts, verdict_of(facts))


STEPS = [later(replace(HEALTHY, disk_free_bytes=10**11), s, wal=s * MIB) for s in range(0, 60, 5)]
SEEN = answer_of(*STEPS)
BLIND = answer_of(
    replace(
        HEALTHY, postgres=Unseen("postgres", "x"), connect=Unseen("connect", "y"), kafka=Unseen("kafka", "z")
    )
)
WRONG = answer_of(*(with_connect(with_slot(s, active_pid=None), state="STOPPED", tasks=()) for s in STEPS))
ANSWERS = [SEEN, BLIND, WRONG]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (15000, "4 h 10 min"),
        (10**6, "11 days"),
    ],
)
def test_durations(seconds: float, said: str) -> None:
    assert formatting.duration(seconds) == said


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 kB"), (-2 * MIB, "-2.0 MB"), (5 * 2**40, "5.0 TB")],
)
def test_sizes(count: float, said: str) -> None:
    assert formatting.size(count) == said


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_road_is_a_tree_in_the_order_of_an_event(answer: Assessment) -> None:
    kinds = [line.lstrip("│├└ ").split()[0] for line in stages.lines(answer.facts)]
    assert kinds == sorted(kinds, key=["table", "slot", "connector", "topic", "group"].index)


def _groups_and_topics() -> Assessment:
    """Two groups read the first topic, one of them the second as well; a third has read nothing yet."""
    first, second = ("a.order", 0), ("b.customer", 0)
    groups = (
        GroupSample("billing", "STABLE", 1, {first: 90, second: 40}),
        GroupSample("mailing", "STABLE", 2, {}, frozenset({"a.order"})),
        GroupSample("search", "EMPTY", 0, {}),
    )
    kafka = KafkaSample(ends={first: 100, second: 40}, starts={first: 0, second: 0}, groups=groups)
    return answer_of(replace(HEALTHY, kafka=kafka))


def test_a_group_stands_below_each_topic_it_reads_with_its_lag_there() -> None:
    drawn = [" ".join(line.split()) for line in stages.lines(_groups_and_topics().facts)][3:]
    assert [line.split(" ", 4)[:4] if line[0] == "│" else line.split(" ", 3)[:3] for line in drawn] == [
        ["├", "topic", "a.order"],
        ["│", "├", "group", "billing"],
        ["│", "└", "group", "mailing"],
        ["├", "topic", "b.customer"],
        ["│", "└", "group", "billing"],
        ["└", "group", "search"],
    ]
    for place, behind in enumerate(("10 records", "100 records", "", "0 records", "140 records")):
        assert behind in drawn[place + 1]


@pytest.mark.parametrize("answer", [*ANSWERS, _groups_and_topics()])
@pytest.mark.parametrize("width", [40, 80])
def test_the_road_fits_the_terminal_and_says_everything(answer: Assessment, width: int) -> None:
    wide, narrow = stages.lines(answer.facts), stages.lines(answer.facts, width)
    assert all(len(line) <= width for line in narrow)
    said = " ".join(line.strip("│├└ ") for line in narrow)
    for stage in stages.tree(answer.facts):
        for words_said in (stage.name, stage.state, stage.numbers):
            assert words_said in said
    assert stages.lines(answer.facts, 400) == wide


def test_a_name_wider_than_the_terminal_keeps_its_ends() -> None:
    named = replace(HEALTHY, names=replace(NAMES, connector="orders_of_the_western_region_outbox_2"))
    drawn = stages.lines(answer_of(named).facts, 40)
    assert any("connector orders…" in line and line.endswith("_outbox_2") for line in drawn)
    assert all(len(line) <= 40 for line in drawn)


def test_the_document_has_the_promised_fields() -> None:
    found = document.status(WRONG.facts, WRONG.verdict)
    promised = ["verdict", "severity", "cause", "next_step", "unseen", "findings", "slot", "outbox"]
    assert {*promised, "connector", "topics", "groups"} <= set(found)
    slot = found["slot"]
    assert {
        "name",
        "active",
        "wal_status",
        "retained_bytes",
        "unconfirmed_bytes",
        "safe_wal_size_bytes",
    } <= set(slot)
    assert {"earliest", "expected", "end"} <= set(slot["seconds_left"])
    json.dumps(found)


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("width", [40, 80, 160])
def test_the_terminal_view_fits(answer: Assessment, width: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(view.screen(answer, (), width))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert lines[0].startswith(answer.verdict.severity.value)
    assert all(len(line) <= width for line in lines)


def test_curves() -> None:
    assert view.sparkline([0, 1, 2, 4]) == "▁▃▅█"
    assert view.sparkline([]) == ""
    assert view.sparkline([0.0, 0.0]) == "▁▁"
    assert view.bar(0.5, 4) == "██░░"
    assert view.bar(7, 4) == "████"


class _Checker(HTMLParser):
    """Collects what a page would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_page_fetches_nothing_from_elsewhere(answer: Assessment) -> None:
    checker = _Checker()
    text = page.page(answer, ())
    checker.feed(text)
    assert all(not link.startswith(("http", "//")) for link in checker.fetched)
    assert "svg" in checker.tags
    assert text.index(answer.verdict.key.value) < text.index("<svg")


def test_names_cannot_break_the_page() -> None:
    evil = "<script>alert(1)</script>\" ' &"
    names = replace(NAMES, pipeline=evil, table=f"public.{evil}", connector=evil)
    text = page.page(answer_of(replace(HEALTHY, names=names)), ())
    assert "<script>alert" not in text
    assert text.count("<script>") == 1


def test_every_verdict_has_its_place_in_the_picture() -> None:
    placed = set().union(*page._PLACES.values())
    assert placed == set(VerdictKey) - {VerdictKey.HEALTHY, VerdictKey.IDLE}


def fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_site_answers_every_path() -> None:
    samples = iter(STEPS)
    state = WatchState(lambda: next(samples), Thresholds())
    with StatusServer(StatusPages(state, lambda: state.counts, 10.0), "127.0.0.1", 0) as server:
        assert fetch(f"{server.url}readyz")[0] == 503
        assert fetch(f"{server.url}status.json")[0] == 503
        assert fetch(f"{server.url}healthz")[0] == 200  # starting is not stuck
        assert fetch(f"{server.url}metrics")[0] == 200
        assert "waiting" in fetch(server.url)[1]
        state.step()
        assert fetch(f"{server.url}readyz") == (200, "ready\n")
        assert json.loads(fetch(f"{server.url}status.json")[1])["verdict"] == "healthy"
        assert 'outbox_verdict{key="healthy",pipeline="shop"}' in fetch(f"{server.url}metrics")[1]
        assert fetch(f"{server.url}nothing")[0] == 404


def test_a_stuck_watch_is_not_healthy() -> None:
    now = [0.0]
    state = WatchState(lambda: HEALTHY, Thresholds(), clock=lambda: now[0])
    state.step()
    site = StatusPages(state, lambda: state.counts, 10.0)
    assert site.reply("/healthz").status == 200
    now[0] = 11.0
    assert site.reply("/healthz").status == 503


def test_a_port_that_is_taken_is_one_line() -> None:
    state = WatchState(lambda: HEALTHY, Thresholds())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(Failed, match="cannot listen"):
            StatusServer(StatusPages(state, lambda: state.counts, 10.0), "127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize("text", ["9187", "host:", "host:x", "host:70000"])
def test_a_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        address(text)


def test_addresses() -> None:
    assert address("127.0.0.1:9187") == ("127.0.0.1", 9187)
    assert address("[::1]:80") == ("::1", 80)
    assert address(":80") == ("0.0.0.0", 80)


def test_a_keeper_counts_changes_and_keeps_few() -> None:
    steps = [with_connect(HEALTHY, state="PAUSED") if n % 2 else HEALTHY for n in range(200)]
    samples = iter([replace(step, at=step.at + n) for n, step in enumerate(steps)])
    state = WatchState(lambda: next(samples), Thresholds())
    for _ in range(200):
        state.step()
    assert state.counts.changes == 200
    assert len(state.changes) == 50


def test_each_sample_is_reduced_to_a_point_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reduced: list[float] = []

    def counted(sample: Sample) -> history.Point:
        reduced.append(sample.at)
        return point_of(sample)

    point_of = history.point_of
    monkeypatch.setattr(history, "point_of", counted)
    samples = iter([HEALTHY, later(HEALTHY, 2), later(HEALTHY, 4)])
    state = WatchState(lambda: next(samples), Thresholds())
    for _ in range(3):
        state.step()
    assert reduced == [point.at for point in state.history.points]


def test_a_tick_that_arrives_is_timed() -> None:
    now = [100.0]
    pulse = LatencyProbe("shop.message", clock=lambda: now[0])
    assert pulse.seconds(30) is None
    pulse.sent("0/10")
    now[0] = 100.25
    pulse.arrived(b'{"lsn":99}')
    assert pulse.seconds(30) == pytest.approx(0.25)  # away for as long
    pulse.arrived(b'{"lsn":16}')
    now[0] = 105.0
    assert pulse.seconds(30) == pytest.approx(0.25)
    pulse.sent("0/20")
    now[0] = 140.0
    assert pulse.seconds(30) == pytest.approx(35)  # it does not arrive: the number grows


def test_log_lines_are_single_lines() -> None:
    for answer in ANSWERS:
        assert "\n" not in view.status_line(answer)
        assert re.match(r"\d{4}-\d\d-\d\dT", view.status_line(answer))
