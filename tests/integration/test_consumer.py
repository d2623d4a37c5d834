"""The consumer's promise on real PostgreSQL and Kafka: each effect once, whatever goes wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from fix_consumer import QUICK, Bench, running, write_effect
from outbox_consumers import Event, Reject, RetryStrategy, Skip, consumer
from outbox_consumers.inbox.claims import Inbox
from waiting import until

pytestmark = pytest.mark.stack


def test_every_event_is_applied_once_in_order_per_key(bench: Bench) -> None:
    bench.send_many(2000)
    with running(bench.applying()) as app:
        until(lambda: app.counters.processed == 2000)
    bench.applied_once()
    bench.applied_in_order()


def test_offsets_are_committed_behind_the_effects(bench: Bench) -> None:
    """A second run finds nothing to do: every partition's offset was committed when the first left."""
    bench.send_many(500)
    with running(bench.applying()) as app:
        until(lambda: app.counters.processed == 500)
    bench.send({"n": 500})
    bench.flush()
    with running(bench.applying()) as again:
        until(lambda: again.counters.processed == 1)
    assert again.counters.duplicates == 0
    bench.applied_once()


def test_duplicates_across_batches_and_inside_one_are_skipped(bench: Bench) -> None:
    ids = [bench.send({"n": n}, partition=0) for n in range(50)]
    for n, event_id in enumerate(ids):
        bench.send({"n": n}, id=event_id, partition=0)
        bench.send({"n": n}, id=event_id, partition=1)
    bench.flush()
    with running(bench.applying()) as app:
        until(lambda: app.counters.processed + app.counters.duplicates == 150)
    assert app.counters.processed == 50
    bench.applied_once()


def test_the_fast_claim_falls_back_when_a_duplicate_shows_up_and_recovers(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Inbox] = []

    def noted(*arguments: Any) -> Inbox:
        made.append(Inbox(*arguments))
        return made[-1]

    monkeypatch.setattr(consumer, "Inbox", noted)
    known = [bench.send({"n": n}) for n in range(100)]
    bench.flush()
    with running(bench.applying(batch_size=100)) as app:
        until(lambda: app.counters.processed == 100)
        until(lambda: not made[0].careful)  # a clean batch has made it fast
        bench.send({"n": 100})
        bench.send({"n": 5}, id=known[5])
        bench.flush()
        until(lambda: app.counters.duplicates == 1)
        bench.send({"n": 102})
        bench.flush()
        until(lambda: app.counters.processed == 102)
        until(lambda: not made[0].careful)
    bench.applied_once()
    assert app.counters.failures == 0


def test_two_consumers_of_one_database_each_handle_every_event(bench: Bench) -> None:
    bench.send_many(100)
    for name in ("billing", "shipping"):
        with running(bench.applying(name)) as app:
            until(lambda app=app: app.counters.processed == 100)  # type: ignore[misc]
    bench.applied_once("billing")
    bench.applied_once("shipping")


def test_two_groups_of_one_consumer_share_what_was_handled(bench: Bench) -> None:
    """Blue and green deployments have two group ids and one name."""
    bench.send_many(100)
    with running(bench.applying()) as blue:
        until(lambda: blue.counters.processed == 100)
    green = bench.applying(kafka={"group.id": f"{bench.topic}.green"})
    with running(green):
        until(lambda: green.counters.duplicates == 100)
    bench.applied_once()


def test_a_batch_handler_gets_events_together(bench: Bench) -> None:
    sizes: list[int] = []
    app = bench.app()

    @app.batch_handler("Placed", max_size=100)
    def placed(conn: psycopg.Connection[Any], events: Sequence[Event]) -> None:
        sizes.append(len(events))
        with conn.cursor().copy("COPY effect (event_id, consumer, key, n) FROM STDIN") as copy:
            for event in events:
                copy.write_row((event.id, "billing", event.key, event.data["n"]))

    bench.send_many(1000)
    with running(app):
        until(lambda: app.counters.processed == 1000)
    assert max(sizes) == 100
    assert app.counters.singles == 0
    bench.applied_once()


def test_a_handler_may_have_one_cursor_for_all_its_events(bench: Bench) -> None:
    app = bench.app()
    failed: list[int] = []

    @app.handler("Placed", cursor=True)
    def placed(cursor: psycopg.Cursor[Any], event: Event) -> None:
        n = event.data["n"]
        values = (event.id, event.key, n)
        cursor.execute(
            "INSERT INTO effect (event_id, consumer, key, n) VALUES (%s, 'billing', %s, %s)", values
        )
        assert cursor.execute("SELECT %s::int", (n,)).fetchone() == (n,)
        if n == 70 and len(failed) < 3:
            failed.append(n)
            raise RuntimeError("not yet")

    bench.send_many(200)
    with running(app):
        until(lambda: app.counters.processed == 200)
        bench.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            " AND datname = current_database()"
        )
        bench.send_many(20)
        until(lambda: app.counters.processed == 220)
    assert failed == [70] * 3
    bench.applied_once()


def test_events_sent_three_times_in_any_order_are_applied_once(bench: Bench) -> None:
    app = bench.applying(batch_size=100)
    for n in range(300):
        bench.send({"n": n}, key=str(n % 20))
    copies = list(enumerate(bench.sent)) * 2
    random.Random(1).shuffle(copies)
    for n, event_id in copies:
        bench.send({"n": n}, key=str(n % 20), id=event_id)
    bench.flush()
    with running(app):
        until(lambda: app.counters.processed + app.counters.duplicates == 900)
    assert app.counters.processed == 300
    bench.applied_once()


def test_mixed_types_of_one_key_keep_their_order(bench: Bench) -> None:
    app = bench.app()

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        write_effect(conn, event)

    @app.batch_handler("Metered")
    def metered(conn: psycopg.Connection[Any], events: Sequence[Event]) -> None:
        for event in events:
            write_effect(conn, event)

    for n in range(300):
        bench.send({"n": n}, kind="Metered" if n % 5 else "Placed", partition=0)
    bench.flush()
    with running(app):
        until(lambda: app.counters.processed == 300)
    assert bench.effects() == list(range(300))


def test_a_failing_event_is_retried_and_holds_up_only_its_partition(bench: Bench) -> None:
    attempts: list[int] = []
    healed = False
    app = bench.app(retry=RetryStrategy(wait=0.05, exponential_wait=0))

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        if event.data["n"] == 10 and not healed:
            attempts.append(event.attempt)
            raise RuntimeError("not yet")
        write_effect(conn, event)

    for n in range(30):
        bench.send({"n": n}, partition=n % 3)
    bench.flush()
    with running(app):
        until(lambda: app.counters.processed == 10 + 10 + 3 and len(attempts) > 3)
        bench.send({"n": 30}, partition=0)
        bench.send({"n": 31}, partition=1)
        bench.flush()
        until(lambda: app.counters.processed == 24)
        assert {1, 4, 7} == {n for n in bench.effects() if n % 3 == 1}
        healed = True
        until(lambda: app.counters.processed == 32)
    bench.applied_once()
    assert [n for n in bench.effects() if n % 3 == 1] == sorted(n for n in range(32) if n % 3 == 1)
    assert attempts[1:4] == [1, 2, 3]  # the first was in the batch


def test_a_batch_handler_that_fails_is_called_with_each_event_alone(bench: Bench) -> None:
    app = bench.app()

    @app.batch_handler("Placed")
    def placed(conn: psycopg.Connection[Any], events: Sequence[Event]) -> None:
        for event in events:
            if event.data["n"] == 7:
                raise Reject("seven")
            write_effect(conn, event)

    for n in range(20):
        bench.send({"n": n}, partition=0)
    bench.flush()
    with running(app):
        until(lambda: app.counters.processed == 19)
    assert app.counters.rejected == 1
    assert bench.effects() == [n for n in range(20) if n != 7]


def test_a_rejected_event_leaves_no_effect_and_is_not_seen_again(bench: Bench) -> None:
    app = bench.app()

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        write_effect(conn, event)
        if event.data["n"] == 1:
            raise Reject("never")

    bad = bench.send({"n": 1})
    bench.send({"n": 2})
    bench.send({"n": 1}, id=bad)
    bench.flush()
    with running(app):
        until(lambda: app.counters.processed + app.counters.rejected + app.counters.duplicates == 3)
    assert (app.counters.rejected, app.counters.duplicates) == (1, 1)
    assert bench.effects() == [2]


def test_skip_marks_an_event_as_seen(bench: Bench) -> None:
    app = bench.app()
    seen: list[int] = []

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        seen.append(event.data["n"])
        raise Skip

    event_id = bench.send({"n": 1})
    bench.flush()
    with running(app):
        until(lambda: app.counters.processed == 1)
        bench.send({"n": 1}, id=event_id)
        bench.flush()
        until(lambda: app.counters.duplicates == 1)
    assert seen == [1]


def test_skip_after_a_database_error_discards_what_was_written(bench: Bench) -> None:
    app = bench.app()
    bench.run("ALTER TABLE effect ADD UNIQUE (n)")

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        try:
            write_effect(conn, event)
        except psycopg.errors.UniqueViolation:
            raise Skip from None

    for n in (1, 2, 2, 3):
        bench.send({"n": n}, partition=0)
    bench.flush()
    with running(app):
        until(lambda: app.counters.processed == 4)
    assert bench.effects() == [1, 2, 3]


def test_unknown_types_leave_no_row_so_that_a_later_handler_can_replay_them(bench: Bench) -> None:
    bench.send({"n": 1}, kind="Unheard")
    bench.send({"n": 2}, headers=[])
    bench.send({"n": 3}, headers=[("id", b"x"), ("event_type", b"\xff\xfe")])
    bench.send({"n": 4})
    bench.flush()
    with running(bench.applying()) as app:
        until(lambda: app.counters.processed == 1 and app.counters.skipped == 2)
    assert app.counters.untyped == 1
    assert bench.query("SELECT count(*) FROM inbox") == [(1,)]


def test_records_without_an_id_or_with_a_text_id_are_handled(bench: Bench) -> None:
    for _ in range(2):
        bench.send({"n": 1}, headers=[("event_type", b"Placed")])
        bench.send({"n": 2}, headers=[("event_type", b"Placed"), ("id", b"order-17")])
    bench.flush()
    with running(bench.applying()) as app:
        until(lambda: app.counters.processed + app.counters.duplicates == 4)
    assert sorted(bench.effects()) == [1, 1, 2]  # a text id is the same id twice, a missing one is not
    assert app.counters.without_id >= 2


def test_a_payload_that_is_no_json_is_rejected_at_once(bench: Bench) -> None:
    bench.send(b"{not json")
    bench.send(b"\xff\xfe")
    bench.send({"n": 3})
    bench.flush()
    with running(bench.applying()) as app:
        until(lambda: app.counters.processed == 1 and app.counters.rejected == 2)
    assert app.counters.failures == 0
    assert bench.effects() == [3]


def test_a_tombstone_arrives_with_data_none(bench: Bench) -> None:
    app = bench.app()
    seen: list[object] = []

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        seen.append(event.data)

    bench.send(None)
    bench.flush()
    with running(app):
        until(lambda: app.counters.processed == 1)
    assert seen == [None]


def test_a_batch_over_the_time_budget_is_cut_and_nothing_done_is_thrown_away(bench: Bench) -> None:
    """A slow handler must not cost the partition: the loop polls again after a third of the interval."""
    calls: list[int] = []
    app = bench.app(kafka={"max.poll.interval.ms": 6000, "session.timeout.ms": 6000})
    app._loop_settings = type(app._loop_settings)(app._loop_settings.batch_size, 0.2, QUICK)

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        calls.append(event.data["n"])
        conn.execute("SELECT pg_sleep(0.03)").fetchone()
        write_effect(conn, event)

    for n in range(40):
        bench.send({"n": n}, partition=0)
    bench.flush()
    with running(app):
        until(lambda: app.counters.processed == 40)
    assert calls == list(range(40))
    assert app.counters.batches > 3
    bench.applied_once()
