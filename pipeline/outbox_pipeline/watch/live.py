"""Run the watch until it is stopped: ticks, samples, status over HTTP, notifications, maintenance."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
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
from outbox_pipeline.watch.long_running import WatchState
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
    """The options of `outboxctl watch`."""

    interval_seconds: float
    serve: str = ""
    on_change: str = ""
    notify_url: str = ""
    repeat_seconds: float = notify.REPEAT_SECONDS
    tick: bool = True
    history_file: Path | None = None
    observe: bool | None = None  # write nothing anywhere; None: where apply did not make the connector
    tidy: Callable[[], object] | None = None  # its result is reported unless it is empty
    tidy_seconds: float = 6 * 3600.0


class RunningWatch:
    """A running watch. `stop` may be called from a signal handler or another thread."""

    def __init__(self, definition: Definition, options: WatchOptions, report: Callable[[str], None]) -> None:
        self._definition, self._options, self._report = definition, options, report
        self._stopped = threading.Event()
        self._ticks = heartbeat.Ticks()
        self._maintenance_runs = ScheduledRuns()
        self._latency = LatencyProbe(definition.message_topic)
        self._sampler = Sampler.of(definition)
        past = history.load(options.history_file) if options.history_file else None
        self.state = WatchState(self._take, thresholds_of(definition.watch), history=past)
        self._notification = NotificationState()
        self.url = ""

    def stop(self) -> None:
        """End `run` soon."""
        self._stopped.set()

    def counts(self) -> WatchCounts:
        """Say what the watch has done so far."""
        return replace(
            self.state.counts,
            pipeline=self._definition.pipeline,
            ticks=self._ticks.sent,
            failed_ticks=self._ticks.failed,
            tidied=self._maintenance_runs.done,
            failed_tidies=self._maintenance_runs.failed,
            failed_tidies_in_a_row=self._maintenance_runs.failed_in_a_row,
            tidied_at=self._maintenance_runs.last_done_at,
        )

    def run(self, show: Callable[[Assessment], None]) -> None:
        """Sample until stopped, and `show` every answer.

        Raises Failed when the port is taken, and Refused when postgres.admin leads to a pooler.
        """
        with ExitStack() as stack:
            stack.callback(self._sampler.close)
            self._refuse_pooler()
            if self._options.serve:
                site = StatusPages(
                    self.state, self.counts, 3 * self._options.interval_seconds + LONGEST_SECONDS
                )
                server = stack.enter_context(StatusServer(site, *address(self._options.serve)))
                self.url = server.url
                self._report(f"serving {server.url}")
            if self._options.observe:
                self._report("observing only: no ticks are sent, no partitions created, no rows pruned")
            stack.enter_context(self._ticking())
            stack.enter_context(self._maintaining())
            self._sample(show)
        self._save()

    def _refuse_pooler(self) -> None:
        """Connect once before the threads start, so that a pooler is refused in one line, once."""
        target = self._definition.postgres
        with suppress(Unreachable):  # the samples report that
            postgres.connect(
                target.admin, application_name=APPLICATION_NAME, dbname=target.connector.database
            ).close()

    def _sample(self, show: Callable[[Assessment], None]) -> None:
        due = saved = time.monotonic()
        while not self._stopped.is_set():
            answer = self.state.step()
            show(answer)
            self._notify(answer)
            if time.monotonic() - saved >= SAVE_SECONDS:
                self._save()
                saved = time.monotonic()
            due = max(due + self._options.interval_seconds, time.monotonic())
            self._stopped.wait(max(0.0, due - time.monotonic()))

    def _take(self) -> Sample:
        interval = self._definition.watch.ticker
        within = 3 * interval.total_seconds() if interval else 0.0
        return self._sampler.take(self._latency.seconds(within) if self._ticks_itself() else None)

    def _ticks_itself(self) -> bool:
        wanted = self._options.tick and not self._options.observe
        return wanted and self._definition.watch.ticker is not None

    @contextmanager
    def _ticking(self) -> Iterator[None]:
        """Send ticks and watch them arrive, in threads of their own."""
        interval = self._definition.watch.ticker
        if not self._ticks_itself() or interval is None:
            yield
            return
        ticker = threading.Thread(
            target=self._tick, args=(interval.total_seconds(),), name="ticker", daemon=True
        )
        listener = threading.Thread(
            target=self._latency.run,
            args=(lambda: Reader(self._definition.kafka), self._stopped),
            name="latency",
            daemon=True,
        )
        ticker.start()
        listener.start()
        try:
            yield
        finally:
            self._stopped.set()
            ticker.join(WAIT_SECONDS * 10)
            listener.join(WAIT_SECONDS * 10)

    @contextmanager
    def _maintaining(self) -> Iterator[None]:
        """Run the maintenance of the outbox in its own thread; the end of the watch interrupts a run."""
        tidy = self._options.tidy
        if tidy is None or self._options.observe:
            yield
            return
        thread = threading.Thread(target=self._maintain, args=(tidy,), name="maintenance", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            thread.join(WAIT_SECONDS * 10)

    def _maintain(self, tidy: Callable[[], object]) -> None:
        def unless_foreign() -> object:
            if self._options.observe is None and (reason := self._not_ours()):
                return f"skipped: {reason}"
            return tidy()

        scheduled.repeat(
            unless_foreign,
            "tidy",
            every_seconds=self._options.tidy_seconds,
            stopped=self._stopped.is_set,
            wait=self._wait,
            clock=time.time,
            report=self._report,
            runs=self._maintenance_runs,
        )

    def _not_ours(self) -> str:
        """Return why the outbox is not maintained; empty if a relay publishes it or the connector is ours."""
        gate = MessageGate(self._definition)
        try:
            reason = gate.why_foreign()
        finally:
            gate.close()
        if not reason:
            return ""
        with postgres.as_admin(self._definition, APPLICATION_NAME) as conn:
            return "" if publisher.standing(conn, self._definition) is Publisher.RELAY else reason

    def _tick(self, interval_seconds: float) -> None:
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
            ticked=self._latency.sent,
            why_not=lambda: gate.why_not(
                self._definition.heartbeat_prefix, only_ours=self._options.observe is None
            ),
        )

    def _ticker_session(self) -> psycopg.Connection[TupleRow]:
        """Connect for the ticker, which retries on Unreachable; samples report what is Refused."""
        try:
            return postgres.as_admin(self._definition, TICKER_NAME)
        except Refused as error:
            raise Unreachable(str(error)) from error

    def _wait(self, seconds: float) -> None:
        self._stopped.wait(seconds)

    def _notify(self, answer: Assessment) -> None:
        if not self._options.on_change and not self._options.notify_url:
            return
        self._notification, notice = notify.decide(
            self._notification, time.monotonic(), answer.verdict, repeat_seconds=self._options.repeat_seconds
        )
        if notice is not None:
            threading.Thread(target=self._send, args=(notice, answer), name="notify").start()

    def _send(self, notice: Notice, answer: Assessment) -> None:
        """Notify through each channel; the failure of one is reported and does not affect the other."""
        status = document.status(answer.facts, answer.verdict)
        message = notify.text(notice, self._definition.pipeline)
        channels: list[Callable[[], None]] = []
        if self._options.on_change:
            content = notify.document(notice, status)
            channels.append(lambda: notify.run_command(self._options.on_change, content))
        if self._options.notify_url:
            channels.append(lambda: notify.post(self._options.notify_url, message))
        for send in channels:
            try:
                send()
            except OutboxError as error:
                self._report(f"notification failed: {error}")

    def _save(self) -> None:
        if self._options.history_file is not None:
            try:
                history.save(self._options.history_file, self.state.history)
            except OSError as error:
                self._report(f"the history cannot be kept: {error.strerror}")
