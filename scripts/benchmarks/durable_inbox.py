"""How fast a durable inbox receives and runs jobs, and whether a long queue makes taking jobs slower.

Run as a program it is one round: `python -m benchmarks.durable_inbox VARIANT JOBS` prints jobs per second,
`python -m benchmarks.durable_inbox TOPIC EVENTS` round trips per event and events per second.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg

from benchmarks.consumers import fill
from benchmarks.figures import Figure, Goal
from benchmarks.rounds import Log, rotated
from benchmarks.servers import Servers
from outbox_consumers import Event
from outbox_consumers.durable import DurableInbox, Job, steps
from outbox_consumers.durable.queue import JobQueue
from outbox_consumers.inbox import schema

DATABASE = "billing"
EMPTY_WORK, INSERT_WORK = "jobs with empty handlers", "jobs with one INSERT each"
GROWTH_WORK, RECEIVE_WORK, TRIPS_WORK = "taking and ending 50 jobs", "receiving jobs", "receiving a job"
RECEIVED = "from Kafka, with deduplication"
TOPIC = "bench.durable"
NO_KEY, KEYS = "in any order", "in order of 5,000 keys"
ALONE, TOGETHER = "a transaction each", "quick ones together"
FEW, MILLION = "nothing else waits", "1,000,000 others wait"
WORKERS = 2
INSERT_SHARE = 8  # jobs with an INSERT: an eighth of them, since each commits a transaction
TIMEOUT_SECONDS = 300

GOALS = (
    Goal(EMPTY_WORK, NO_KEY, at_least=5000, absolute=True),
    Goal(EMPTY_WORK, KEYS, at_least=5000, absolute=True),
    Goal(GROWTH_WORK, MILLION, at_most=2),
    Goal(TRIPS_WORK, RECEIVED, at_most=0.1, absolute=True),
)


def measure(servers: Servers, rounds: int, jobs: int, log: Log) -> list[Figure]:
    """Run the same number of jobs with every variant in turn, each in processes of its own."""
    with psycopg.connect(servers.dsn(DATABASE), autocommit=True) as conn:
        schema.apply(conn, [*schema.steps(), *steps()])
        conn.execute("CREATE TABLE IF NOT EXISTS job_effect (key text NOT NULL, n integer NOT NULL)")
    rates: dict[str, list[float]] = {}
    for number in range(rounds):
        for variant in rotated((NO_KEY, KEYS, ALONE, TOGETHER), number):
            log(f"durable inbox, round {number + 1} of {rounds}: {variant}")
            share = jobs if variant in (NO_KEY, KEYS) else jobs // INSERT_SHARE
            rates.setdefault(variant, []).append(_run(servers, variant, share)[-1])
    log(f"durable inbox: receiving {jobs:,} jobs")
    fill(servers, TOPIC, jobs)
    trips, rate = _run(servers, TOPIC, jobs)
    return [
        *(
            Figure(EMPTY_WORK, variant, tuple(rates[variant]), "jobs/s", more_is_better=True)
            for variant in (NO_KEY, KEYS)
        ),
        *(
            Figure(
                INSERT_WORK,
                variant,
                tuple(rates[variant]),
                "jobs/s",
                more_is_better=True,
                reference=variant == ALONE,
            )
            for variant in (ALONE, TOGETHER)
        ),
        Figure(RECEIVE_WORK, RECEIVED, (rate,), "jobs/s", more_is_better=True),
        Figure(TRIPS_WORK, RECEIVED, (trips,), "round trips", more_is_better=False),
        *_growth(servers, log),
    ]


def _run(servers: Servers, variant: str, jobs: int) -> list[float]:
    """Run one round and return the numbers it prints."""
    environ = {**os.environ, "BENCH_DSN": servers.dsn(DATABASE), "PYTHONPATH": sys.path[0]}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.durable_inbox", variant, str(jobs)],
        env=environ,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    return [float(word) for word in done.stdout.split()]


def _growth(servers: Servers, log: Log) -> list[Figure]:
    """Measure the time of a batch while few jobs wait, and while a million do."""
    log("durable inbox: taking with a million jobs waiting")
    with psycopg.connect(servers.dsn(DATABASE), autocommit=True) as conn:
        conn.execute("TRUNCATE inbox_job, inbox_worker")
        few = _batches(conn)
        _fill(conn, 1_000_000)
        many = _batches(conn)
        conn.execute("TRUNCATE inbox_job, inbox_worker")
    return [
        Figure(GROWTH_WORK, FEW, few, "ms", more_is_better=False, reference=True),
        Figure(GROWTH_WORK, MILLION, many, "ms", more_is_better=False),
    ]


def _batches(conn: psycopg.Connection[Any], batches: int = 200, size: int = 50) -> tuple[float, ...]:
    """Measure for each batch the milliseconds to sort, take and finish it."""
    _fill(conn, batches * size)
    conn.execute("VACUUM ANALYZE inbox_job")
    conn.execute("CHECKPOINT")
    queue = JobQueue("bench", "inbox", 0)
    [(worker,)] = conn.execute(
        "INSERT INTO inbox_worker (consumer, name, alive_until, backend)"
        " VALUES ('bench', 'bench', 'infinity', 0) RETURNING id"
    ).fetchall()
    samples = []
    for _ in range(batches):
        begun = time.perf_counter()
        with conn.transaction():
            queue.sort_new(conn)
            queue.activate_due(conn)
            jobs = queue.take(conn, worker, size)
        with conn.transaction():
            queue.finish(conn, worker, jobs)
        samples.append((time.perf_counter() - begun) * 1000)
    return tuple(samples)


def _fill(conn: psycopg.Connection[Any], jobs: int) -> None:
    conn.execute(
        "INSERT INTO inbox_job (consumer, state, priority, due_at, event_id, event_type, topic, partition,"
        " \"offset\", headers) SELECT 'bench', 'ready', 0, now(), gen_random_uuid(), 'Work', '', 0, 0,"
        " '[]' FROM generate_series(1, %s)",
        [jobs],
    )


# -- One round, in a process of its own ----------------------------------------------------------------


def main(variant: str, jobs: int) -> None:
    """Enqueue jobs, run them, and print jobs per second."""
    dsn = os.environ["BENCH_DSN"]
    durable = DurableInbox("bench", dsn=dsn)
    durable.handler("Empty")(_nothing)
    durable.handler("Insert", together=variant == TOGETHER)(_insert)
    kind = "Empty" if variant in (NO_KEY, KEYS) else "Insert"
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("TRUNCATE inbox_job, inbox_worker, job_effect")
        for first in range(0, jobs, 1000):
            numbers = range(first, min(first + 1000, jobs))
            durable.put_many(conn, [Job(kind, {"n": n}, key=_key(variant, n)) for n in numbers])
        conn.execute("CHECKPOINT")
    begun = time.perf_counter()
    ended: list[float] = []
    threading.Thread(target=_stop_when_empty, args=(dsn, durable.stop, ended), daemon=True).start()
    durable.run(workers=WORKERS)
    print(jobs / (ended[0] - begun))


def receive(topic: str, events: int) -> None:
    """Receive a topic; print round trips per event, and events per second from the first to the last."""
    dsn, bootstrap = os.environ["BENCH_DSN"], os.environ["OUTBOX_KAFKA_BOOTSTRAP"]
    kafka = {"bootstrap.servers": bootstrap, "group.id": topic}
    durable = DurableInbox("bench", dsn=dsn, kafka=kafka, topics=[topic])
    durable.handler("OrderPlaced")(_nothing)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("TRUNCATE inbox, inbox_job, inbox_worker")
        conn.execute("CHECKPOINT")
    receiver = threading.Thread(target=durable.receive, daemon=True)
    trips = _counted(receiver)
    receiver.start()
    began = before = here = 0.0
    with psycopg.connect(dsn, autocommit=True) as conn:
        while here < events:
            time.sleep(0.02)
            [(here,)] = conn.execute("SELECT count(*) FROM inbox_job").fetchall()
            if here and not began:
                began, before = time.perf_counter(), here
    ended = time.perf_counter()
    durable.stop()
    receiver.join()
    print(len(trips) / events, (events - before) / (ended - began) if events > before else 0)


def _counted(thread: threading.Thread) -> list[None]:
    """Count the statements that a thread sends to the database from now on."""
    execute, trips = psycopg.Cursor.execute, list[None]()

    def counted(self: Any, *arguments: Any, **named: Any) -> Any:
        if threading.current_thread() is thread:
            trips.append(None)
        return execute(self, *arguments, **named)

    psycopg.Cursor.execute = counted  # type: ignore[method-assign]  # the only way to see every one
    return trips


def _key(variant: str, number: int) -> str:
    return "" if variant == NO_KEY else f"order-{number % 5000}"


def _nothing(conn: psycopg.Connection[Any], event: Event) -> None:
    """Do nothing."""


def _insert(conn: psycopg.Connection[Any], event: Event) -> None:
    conn.execute("INSERT INTO job_effect VALUES (%s, %s)", (event.key, event.data["n"]))


def _stop_when_empty(dsn: str, stop: Callable[[], None], ended: list[float]) -> None:
    time.sleep(0.5)  # the processes are forked before this one opens a connection
    with psycopg.connect(dsn, autocommit=True) as conn:
        while conn.execute("SELECT EXISTS (SELECT FROM inbox_job)").fetchone() != (False,):
            time.sleep(0.05)
    ended.append(time.perf_counter())
    stop()


if __name__ == "__main__":
    (receive if sys.argv[1] == TOPIC else main)(sys.argv[1], int(sys.argv[2]))
