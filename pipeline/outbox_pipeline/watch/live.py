"""Run the watch until it is told to stop: ticks, samples, answers over HTTP, messages to people."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_pipeline.connect.message_gate import MessageGate
from outbox_pipeline.errors import OutboxError, Refused, Unreachable
from outbox_pipeline.ids import publisher
from outbox_pipeline.ids.publisher import Publisher
from outbox_pipeline.servers import postgres
from outbox_pipeline.servers.topic_reader import Reader
from outbox_pipeline.watch import document, heartbeat, history, notify, scheduled
from outbox_pipeline.watch.latency import LatencyProbe
from outbox_pipeline.watch.long_running import Keeper
from outbox_pipeline.watch.metrics import WatchCounts
from outbox_pipeline.watch.notify import Notice, NotificationState
from outbox_pipeline.watch.one_shot import Assessment
from outbox_pipeline.watch.sample import Sample
from outbox_pipeline.watch.sampling import APPLICATION_NAME, LONGEST_SECONDS, TICKER_NAME, Sampler
from outbox_pipeline.watch.scheduled import ScheduledRuns
from outbox_pipeline.watch.serve import StatusPages, StatusServer, address
from outbox_pipeline.watch.thresholds import thresholds_of

SAVE_SECONDS = 60.0
WAIT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What the caller wants of the watch."""

    interval_seconds: float
    serve: str = ""
    on_change: str = ""
    notify_url: str = ""
    repeat_seconds: float = notify.REPEAT_SECONDS
    tick: bool = True
    history_file: Path | None = None
    observe: bool | None = None  # write nothing anywhere; None: where apply did not make the connector
    tidy: Callable[[], object] | None = None  # what it gives back is reported, if it says anything
    tidy_seconds: float = 6 * 3600.0


class RunningWatch:
    """A running watch. `stop` may be called from a signal handler or another thread."""

    def __init__(self, definition: Definition, wishes: WatchOptions, report: Callable[[str], None]) -> None:
        self._definition, self._wishes, self._report = definition, wishes, report
        self._stopped = threading.Event()
        self._ticks = heartbeat.Ticks()
        self._chores = ScheduledRuns()
        self._pulse = LatencyProbe(definition.message_topic)
        self._sampler = Sampler.of(definition)
        past = history.load(wishes.history_file) if wishes.history_file else None
        self.keeper = Keeper(self._take, thresholds_of(definition.watch), history=past)
        self._telling = NotificationState()
        self.url = ""

    def stop(self) -> None:
        """End `run` soon."""
        self._stopped.set()

    def counts(self) -> WatchCounts:
        """Say what the watch has done so far."""
        return replace(
            self.keeper.counts,
            pipeline=self._definition.pipeline,
            ticks=self._ticks.sent,
            failed_ticks=self._ticks.failed,
            tidied=self._chores.done,
            failed_tidies=self._chores.failed,
            failed_tidies_in_a_row=self._chores.failed_in_a_row,
            tidied_at=self._chores.last_done_at,
        )

    def run(self, show: Callable[[Assessment], None]) -> None:
        """Sample until stopped, and `show` every answer. Raises Failed when the port is taken."""
        with ExitStack() as kept:
            kept.callback(self._sampler.close)
            if self._wishes.serve:
                site = StatusPages(
                    self.keeper, self.counts, 3 * self._wishes.interval_seconds + LONGEST_SECONDS
                )
                server = kept.enter_context(StatusServer(site, *address(self._wishes.serve)))
                self.url = server.url
                self._report(f"serving {server.url}")
            if self._wishes.observe:
                self._report("observing only: no ticks, no partitions made, nothing pruned")
            kept.enter_context(self._ticking())
            kept.enter_context(self._tidying())
            self._sample(show)
        self._save()

    def _sample(self, show: Callable[[Assessment], None]) -> None:
        due = saved = time.monotonic()
        while not self._stopped.is_set():
            answer = self.keeper.step()
            show(answer)
            self._tell(answer)
            if time.monotonic() - saved >= SAVE_SECONDS:
                self._save()
                saved = time.monotonic()
            due = max(due + self._wishes.interval_seconds, time.monotonic())
            self._stopped.wait(max(0.0, due - time.monotonic()))

    def _take(self) -> Sample:
        interval = self._definition.watch.ticker
        within = 3 * interval.total_seconds() if interval else 0.0
        return self._sampler.take(self._pulse.seconds(within) if self._ticks_itself() else None)

    def _ticks_itself(self) -> bool:
        wanted = self._wishes.tick and not self._wishes.observe
        return wanted and self._definition.watch.ticker is not None

    @contextmanager
    def _ticking(self) -> Iterator[None]:
        """Send ticks and watch them arrive, in threads of their own."""
        interval = self._definition.watch.ticker
        if not self._ticks_itself() or interval is None:
            yield
            return
        beat = threading.Thread(
            target=self._beat, args=(interval.total_seconds(),), name="ticker", daemon=True
        )
        listen = threading.Thread(
            target=self._pulse.run,
            args=(lambda: Reader(self._definition.kafka), self._stopped),
            name="pulse",
            daemon=True,
        )
        beat.start()
        listen.start()
        try:
            yield
        finally:
            self._stopped.set()
            beat.join(WAIT_SECONDS * 10)
            listen.join(WAIT_SECONDS * 10)

    @contextmanager
    def _tidying(self) -> Iterator[None]:
        """Keep the outbox tidy, in a thread of its own. What it is at when the watch ends is left undone."""
        tidy = self._wishes.tidy
        if tidy is None or self._wishes.observe:
            yield
            return
        thread = threading.Thread(target=self._tidy, args=(tidy,), name="tidy", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            thread.join(WAIT_SECONDS * 10)

    def _tidy(self, tidy: Callable[[], object]) -> None:
        def unless_foreign() -> object:
            if self._wishes.observe is None and (reason := self._not_ours()):
                return f"left undone: {reason}"
            return tidy()

        scheduled.repeat(
            unless_foreign,
            "tidy",
            every_seconds=self._wishes.tidy_seconds,
            stopped=self._stopped.is_set,
            wait=self._wait,
            clock=time.time,
            report=self._report,
            chores=self._chores,
        )

    def _not_ours(self) -> str:
        """Say why the outbox is not ours to tidy; empty where it is a relay's or apply made the connector."""
        gate = MessageGate(self._definition)
        try:
            reason = gate.why_foreign()
        finally:
            gate.close()
        if not reason:
            return ""
        with postgres.as_admin(self._definition, APPLICATION_NAME) as conn:
            return "" if publisher.standing(conn, self._definition) is Publisher.RELAY else reason

    def _beat(self, interval_seconds: float) -> None:
        gate = MessageGate(self._definition)
        try:
            self._tick_through(gate, interval_seconds)
        finally:
            gate.close()

    def _tick_through(self, gate: MessageGate, interval_seconds: float) -> None:
        heartbeat.run(
            self._ticker_session,
            self._definition.heartbeat_prefix,
            interval_seconds=interval_seconds,
            stopped=self._stopped.is_set,
            sleep=self._wait,
            clock=time.monotonic,
            report=self._report,
            ticks=self._ticks,
            ticked=self._pulse.sent,
            why_not=lambda: gate.why_not(
                self._definition.heartbeat_prefix, only_ours=self._wishes.observe is None
            ),
        )

    def _ticker_session(self) -> psycopg.Connection[TupleRow]:
        """Connect for the ticker, which waits for a server; whether the place is refused the samples say."""
        try:
            return postgres.as_admin(self._definition, TICKER_NAME)
        except Refused as error:
            raise Unreachable(str(error)) from error

    def _wait(self, seconds: float) -> None:
        self._stopped.wait(seconds)

    def _tell(self, answer: Assessment) -> None:
        if not self._wishes.on_change and not self._wishes.notify_url:
            return
        self._telling, notice = notify.decide(
            self._telling, time.monotonic(), answer.verdict, repeat_seconds=self._wishes.repeat_seconds
        )
        if notice is not None:
            threading.Thread(target=self._send, args=(notice, answer), name="notify").start()

    def _send(self, notice: Notice, answer: Assessment) -> None:
        """Tell by every door; a door that is shut is reported and does not shut the other."""
        status = document.status(answer.facts, answer.verdict)
        message = notify.text(notice, self._definition.pipeline)
        doors: list[Callable[[], None]] = []
        if self._wishes.on_change:
            doors.append(lambda: notify.run_command(self._wishes.on_change, notify.document(notice, status)))
        if self._wishes.notify_url:
            doors.append(lambda: notify.post(self._wishes.notify_url, message))
        for door in doors:
            try:
                door()
            except OutboxError as error:
                self._report(f"not told: {error}")

    def _save(self) -> None:
        if self._wishes.history_file is not None:
            try:
                history.save(self._wishes.history_file, self.keeper.history)
            except OSError as error:
                self._report(f"the history cannot be kept: {error.strerror}")
