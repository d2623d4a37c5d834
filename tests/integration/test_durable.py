"""The durable inbox on a real PostgreSQL: jobs are handled once and in order, or kept with their error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from uuid_utils.compat import uuid7

from durable_lab import Lab, finish, new_inbox, running_workers, write_effect
from fix_stack import Database
from outbox_consumers import Event, Reject, Skip
from outbox_consumers.durable import DurableInbox, Job, steps
from outbox_consumers.errors import InboxUnusable, Unreachable, UsageError
from outbox_consumers.inbox import schema
from waiting import until

pytestmark = pytest.mark.stack


# -- Adding jobs ---------------------------------------------------------------------------------------


def test_a_job_is_added_in_the_callers_transaction(lab: Lab) -> None:
    durable = lab.inbox()
    with psycopg.connect(lab.dsn) as conn:
        durable.put(conn, "Work", {"n": 1}, key="k")
        conn.rollback()
        durable.put(conn, "Work", {"n": 2}, key="k")
        conn.commit()
        durable.put(conn, "Work", {"n": 3}, key="k")
        conn.rollback()
    finish(lab, durable)
    assert lab.effects() == [2]


def test_each_call_on_an_autocommit_connection_has_its_own_transaction(lab: Lab) -> None:
    durable = lab.inbox()
    with psycopg.connect(lab.dsn, autocommit=True) as conn:
        assert durable.put(conn, "Work", {"n": 1})
        assert durable.put_many(conn, [Job("Work", {"n": 2}), Job("Work", {"n": 3})]) == 2
    finish(lab, durable)
    assert sorted(lab.effects()) == [1, 2, 3]


def test_a_second_job_with_the_same_id_is_ignored(lab: Lab) -> None:
    durable, one = lab.inbox(), uuid7()
    with psycopg.connect(lab.dsn, autocommit=True) as conn:
        assert durable.put(conn, "Work", {"n": 1}, id=one)
        assert not durable.put(conn, "Work", {"n": 1}, id=one)
        twice = [Job("Work", {"n": 2}, id=(two := uuid7())), Job("Work", {"n": 2}, id=two)]
        assert durable.put_many(conn, [*twice, Job("Work", {"n": 1}, id=one)]) == 1
        finish(lab, durable)
        assert not durable.put(conn, "Work", {"n": 1}, id=one)
    assert sorted(lab.effects()) == [1, 2]


def test_an_invalid_job_is_refused_when_it_is_added(lab: Lab) -> None:
    durable = lab.inbox()
    with psycopg.connect(lab.dsn) as conn:
        with pytest.raises(UsageError, match="needs a type"):
            durable.put(conn, "")
        with pytest.raises(UsageError, match="cannot be written as JSON"):
            durable.put(conn, "Work", object())
        with pytest.raises(UsageError, match="no time zone"):
            durable.put(conn, "Work", run_at=datetime(2026, 1, 1))
        with pytest.raises(UsageError, match="priority=40000"):
            durable.put(conn, "Work", priority=40_000)


def test_long_keys_are_handled_in_order_as_well(lab: Lab) -> None:
    durable, key = lab.inbox(), "ключ" * 5000
    with psycopg.connect(lab.dsn, autocommit=True) as conn:
        durable.put_many(conn, [Job("Work", {"n": n}, key=key) for n in range(20)])
    finish(lab, durable, workers=2)
    assert lab.effects(key) == list(range(20))


def test_the_handler_gets_the_job_as_it_was_added(lab: Lab) -> None:
    durable, seen = new_inbox(lab.dsn), []

    @durable.handler("Look")
    def look(conn: psycopg.Connection[Any], event: Event) -> None:
        seen.append((event.type, event.data, event.key, event.id, event.headers, event.attempt))

    one = uuid7()
    with psycopg.connect(lab.dsn, autocommit=True) as conn:
        durable.put(conn, "Look", {"ä": [1, None]}, key="k", id=one, headers={"tenant": "x"})
        durable.put(conn, "Look", None, id=(two := uuid7()))
    finish(lab, durable)
    assert sorted(seen, key=lambda s: s[2]) == [
        ("Look", None, "", two, {}, 1),
        ("Look", {"ä": [1, None]}, "k", one, {"tenant": "x"}, 1),
    ]


# -- Order ---------------------------------------------------------------------------------------------


def test_higher_priority_goes_first_then_the_older_job(lab: Lab) -> None:
    durable = lab.inbox()
    with psycopg.connect(lab.dsn, autocommit=True) as conn:
        durable.put_many(conn, [Job("Work", {"n": n}, priority=n % 3) for n in range(9)])
    finish(lab, durable)
    assert lab.effects() == [2, 5, 8, 1, 4, 7, 0, 3, 6]


def test_a_job_is_not_run_before_its_time(lab: Lab) -> None:
    durable = lab.inbox()
    now = datetime.now(UTC)
    soon, much_later = now + timedelta(seconds=1.5), now + timedelta(days=1)
    lab.run("ALTER TABLE effect ADD COLUMN at timestamptz NOT NULL DEFAULT clock_timestamp()")
    with psycopg.connect(lab.dsn, autocommit=True) as conn:
        durable.put(conn, "Work", {"n": 1}, run_at=soon)
        durable.put(conn, "Work", {"n": 2}, key="k", run_at=soon)
        durable.put(conn, "Work", {"n": 3}, key="k")
        durable.put(conn, "Work", {"n": 4})
        durable.put(conn, "Work", {"n": 5}, run_at=much_later)
    with running_workers(durable):
        until(lambda: len(lab.effects()) == 4)
    at = dict(lab.query("SELECT n, at FROM effect"))
    assert {*at} == {1, 2, 3, 4}
    assert at[1] >= soon
    assert at[2] >= soon
    assert lab.effects("k") == [2, 3]


def test_a_failing_job_delays_only_its_own_key(lab: Lab) -> None:
    durable, tries = new_inbox(lab.dsn), []

    @durable.handler("Work", max_attempts=100_000)
    def work(conn: psycopg.Connection[Any], event: Event) -> None:
        write_effect(conn, event)
        if event.data["n"] == 0:
            tries.append(event.attempt)
            if len(lab.effects("b")) < 5 or event.attempt < 4:
                raise RuntimeError("not yet")

    with psycopg.connect(lab.dsn, autocommit=True) as conn:
        durable.put_many(conn, [Job("Work", {"n": n}, key="a" if n % 2 == 0 else "b") for n in range(10)])
    finish(lab, durable, workers=2)
    assert tries == list(range(1, len(tries) + 1))
    assert len(tries) >= 4
    assert lab.effects("a") == [0, 2, 4, 6, 8]
    assert lab.effects("b") == [1, 3, 5, 7, 9]


def test_two_jobs_of_a_key_never_run_at_the_same_time(lab: Lab) -> None:
    """Four workers while five threads add jobs of one key each: each key in order, one at a time."""
    durable, running, overlaps = new_inbox(lab.dsn), set(), []
    guard = threading.Lock()

    @durable.handler("Work")
    def work(conn: psycopg.Connection[Any], event: Event) -> None:
        with guard:
            if event.key in running:
                overlaps.append(event.key)
            running.add(event.key)
        write_effect(conn, event)
        time.sleep(0.0005)
        with guard:
            running.discard(event.key)

    def put(key: str) -> None:
        with psycopg.connect(lab.dsn) as conn:
            for n in range(60):
                durable.put(conn, "Work", {"n": n}, key=key)
                conn.commit()

    writers = [threading.Thread(target=put, args=(f"k{n}",)) for n in range(5)]
    with running_workers(durable, workers=4):
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        until(lambda: lab.left() == 0)
    assert overlaps == []
    for n in range(5):
        assert lab.effects(f"k{n}") == list(range(60))


def test_the_unique_index_prevents_a_second_head_of_a_queue(lab: Lab) -> None:
    lab.add_jobs(5, keys=1)
    lab.run("UPDATE inbox_job SET state = 'ready' WHERE position = 1")
    with pytest.raises(psycopg.errors.UniqueViolation):
        lab.run("UPDATE inbox_job SET state = 'leased' WHERE position = 2")


# -- Failing -------------------------------------------------------------------------------------------


def test_a_job_that_is_rejected_or_fails_too_often_is_kept_with_its_error(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    durable, fixed = new_inbox(lab.dsn), threading.Event()

    @durable.handler("Work", max_attempts=3)
    def work(conn: psycopg.Connection[Any], event: Event) -> None:
        write_effect(conn, event)
        if event.data["n"] == 1 and not fixed.is_set():
            raise ValueError("broken\0here")
        if event.data["n"] == 2:
            raise Reject("never")
        if event.data["n"] == 3:
            raise Skip("nothing to do")

    with psycopg.connect(lab.dsn, autocommit=True) as conn:
        durable.put_many(conn, [Job("Work", {"n": n}, key="k") for n in range(5)])
        finish(lab, durable)
        assert lab.effects() == [0, 3, 4]
        dead = {job.event.data["n"]: job for job in durable.dead(conn)}
        assert {n: (job.attempts, job.error) for n, job in dead.items()} == {
            1: (3, "ValueError: broken\\x00here"),
            2: (1, "Reject: never"),
        }
        told = {vars(line).get("event_id") for line in caplog.records}
        assert told >= {str(job.event.id) for job in dead.values()}
        assert durable.dead(conn, event_type="Other") == []
        assert durable.status(conn)["dead"].jobs == 2
        assert durable.discard(conn, [dead[2]]) == 1
        fixed.set()
        assert durable.redrive(conn, [dead[1]]) == 1
        finish(lab, durable)
        assert lab.effects() == [0, 3, 4, 1]
        assert durable.status(conn) == {}


def test_a_swallowed_database_error_is_a_failure(lab: Lab) -> None:
    durable = new_inbox(lab.dsn)

    @durable.handler("Work", max_attempts=2)
    def work(conn: psycopg.Connection[Any], event: Event) -> None:
        write_effect(conn, event)
        with suppress(psycopg.Error):
            conn.execute("SELECT 1/0")

    lab.add_jobs(1)
    finish(lab, durable)
    with psycopg.connect(lab.dsn) as conn:
        [job] = durable.dead(conn)
    assert "caught a database error" in job.error
    assert lab.effects() == []


def test_transient_database_errors_do_not_count_as_attempts(lab: Lab) -> None:
    durable, calls = new_inbox(lab.dsn), []

    @durable.handler("Work", max_attempts=1)
    def work(conn: psycopg.Connection[Any], event: Event) -> None:
        calls.append(event.attempt)
        write_effect(conn, event)
        if len(calls) == 1:
            raise psycopg.errors.SerializationFailure("said the server")
        if len(calls) == 2:
            lab.run(f"SELECT pg_terminate_backend({conn.info.backend_pid})")
            until(lambda: broken(conn))

    lab.add_jobs(1)
    finish(lab, durable)
    assert calls == [1, 1, 1]
    lab.assert_applied_once_in_order()


def broken(conn: psycopg.Connection[Any]) -> bool:
    try:
        conn.execute("SELECT 1")
    except psycopg.OperationalError:
        return True
    return False


def test_jobs_without_a_handler_are_given_back(lab: Lab) -> None:
    durable = lab.inbox()
    with psycopg.connect(lab.dsn, autocommit=True) as conn:
        durable.put_many(conn, [Job("Newer"), Job("Newer", key="other")])
    lab.add_jobs(5)
    with running_workers(durable) as [one]:
        until(lambda: len(lab.effects()) == 5)
        until(lambda: lab.states().get("later") == 2)
        assert one._counters.unknown >= 2
    lab.assert_applied_once_in_order()


def test_a_job_that_exceeds_its_timeout_is_tried_again(lab: Lab) -> None:
    """Its statement is cancelled and its effect rolled back; the next attempt succeeds."""
    durable, errors_seen = new_inbox(lab.dsn), []

    @durable.handler("Work", timeout=2)
    def work(conn: psycopg.Connection[Any], event: Event) -> None:
        write_effect(conn, event)
        if event.attempt == 1:
            try:
                conn.execute("SELECT pg_sleep(3600)")
            except psycopg.Error as error:
                errors_seen.append(type(error))
                raise

    lab.add_jobs(1)
    finish(lab, durable)
    assert errors_seen == [psycopg.errors.QueryCanceled]
    assert durable.counters.timeouts >= 1
    lab.assert_applied_once_in_order()


def test_a_handler_that_runs_on_after_its_timeout_commits_nothing(lab: Lab) -> None:
    durable = new_inbox(lab.dsn)

    @durable.handler("Work", timeout=0.3, max_attempts=1)
    def work(conn: psycopg.Connection[Any], event: Event) -> None:
        write_effect(conn, event)
        until(lambda: lab.states().get("dead"))

    lab.add_jobs(1)
    finish(lab, durable)
    assert lab.effects() == []
    # Either one: the cancel request may arrive while the worker ends the job.
    assert durable.counters.fenced + durable.counters.transient == 1
    with psycopg.connect(lab.dsn) as conn:
        assert [job.error for job in durable.dead(conn)] == ["took longer than 0.3 s"]


def test_old_payloads_are_upcast_to_the_version_of_the_handler(lab: Lab) -> None:
    durable = new_inbox(lab.dsn)
    durable.handler("Work", version=2, max_attempts=2)(write_effect)
    durable.upcast("Work", from_version=1)(lambda data: {"n": data["number"]})
    with psycopg.connect(lab.dsn, autocommit=True) as conn:
        durable.put_many(conn, [Job("Work", {"number": 1}), Job("Work", {"n": 2}, version=2)])
        durable.put(conn, "Work", {"n": 4})
        durable.put_many(conn, [Job("Work", {"n": 3}, version=3)])
        finish(lab, durable)
        dead = {job.event.version: job.error for job in durable.dead(conn)}
    assert sorted(lab.effects()) == [1, 2]
    assert {version: error.split(":")[0] for version, error in dead.items()} == {
        1: "KeyError",
        3: "UnreadablePayload",
    }


# -- Invalid set-ups -----------------------------------------------------------------------------------


def test_a_missing_table_is_named(database: Database, lab: Lab) -> None:
    lab.run("DROP TABLE inbox_job")
    durable = lab.inbox()
    with pytest.raises(InboxUnusable, match="no table inbox_job; run outboxctl inbox init"):
        durable.run()
    with pytest.raises(InboxUnusable, match="inbox_job"), psycopg.connect(lab.dsn) as conn:
        durable.put(conn, "Work", {"n": 1})


def test_an_unreachable_server_is_reported_in_one_line(lab: Lab) -> None:
    nowhere = DurableInbox("billing", dsn=make_conninfo(lab.dsn, port="1", password="secret"))
    nowhere.handler("Work")(write_effect)
    with pytest.raises(Unreachable) as caught:
        nowhere.run()
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda d: d.handler(""),
        lambda d: d.handler("Work", max_attempts=0),
        lambda d: d.handler("Work", timeout=0),
        lambda d: d.handler("Twice"),
    ],
)
def test_invalid_handlers_are_refused_when_they_are_registered(wrong: Callable[[DurableInbox], Any]) -> None:
    durable = DurableInbox("billing")
    durable.handler("Twice")(write_effect)
    with pytest.raises(UsageError):
        wrong(durable)(write_effect)


def test_a_durable_inbox_in_another_schema(lab: Lab) -> None:
    lab.run('CREATE SCHEMA "Odd one"')
    table = "Odd one.in.box" + "x" * 40
    with psycopg.connect(lab.dsn) as conn:
        for step in (*schema.steps(table), *steps(table)):
            conn.execute(step.statement.encode())
        durable = lab.inbox(table=table)
        durable.put_many(conn, [Job("Work", {"n": n}, key="k") for n in range(5)])
    with running_workers(durable):
        until(lambda: lab.effects() == [0, 1, 2, 3, 4])
