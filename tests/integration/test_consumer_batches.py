"""Consumer.batches: a loop of one's own keeps the promise, also when it is careless."""

from __future__ import annotations

from contextlib import suppress

import pytest

from fix_consumer import Bench, write_effect
from outbox_consumers.errors import BatchNotCommitted

pytestmark = pytest.mark.stack


def test_a_loop_of_one_s_own_handles_each_event_once(bench: Bench) -> None:
    bench.send_many(500)
    bench.send({"n": 1}, id=bench.sent[1])
    bench.flush()
    app = bench.app()
    with app.batches(max_size=100) as batches:
        for batch in batches:
            with batch.transaction() as (conn, events):
                for event in events:
                    write_effect(conn, event)
            if app.counters.processed + app.counters.duplicates == 501:
                app.stop()
    bench.applied_once()
    again = bench.app()
    bench.send({"n": 501})
    bench.flush()
    with again.batches() as batches:
        for batch in batches:
            assert [event.data for event in batch.events] == [{"n": 501}]  # offsets were stored
            batch.skip()
            again.stop()


def test_a_batch_that_failed_is_yielded_again(bench: Bench) -> None:
    bench.send_many(50)
    app = bench.app()
    tries = 0
    with app.batches() as batches:
        for batch in batches:
            with suppress(RuntimeError), batch.transaction() as (conn, events):
                for event in events:
                    write_effect(conn, event)
                tries += 1
                if tries % 3:
                    raise RuntimeError
            if app.counters.processed == 50:
                app.stop()
    assert tries >= 3
    bench.applied_once()


def test_a_loop_that_ignores_its_batches_is_stopped_before_it_skips_them(bench: Bench) -> None:
    bench.send_many(10)
    app = bench.app()

    def careless() -> None:
        with app.batches() as batches:
            for _ in batches:
                continue

    with pytest.raises(BatchNotCommitted, match="3 times"):
        careless()
    with app.batches() as batches:
        for batch in batches:
            with batch.transaction() as (conn, events):
                for event in events:
                    write_effect(conn, event)
            if app.counters.processed == 10:
                app.stop()
    bench.applied_once()


def test_a_batch_may_wait_for_more_records(bench: Bench) -> None:
    bench.send_many(30)
    app = bench.app()
    sizes: list[int] = []
    with app.batches(max_size=30, wait=5) as batches:
        for batch in batches:
            sizes.append(len(batch))
            with batch.transaction() as (conn, events):
                for event in events:
                    write_effect(conn, event)
            if sum(sizes) == 30:
                app.stop()
    assert sizes == [30]
    bench.applied_once()
