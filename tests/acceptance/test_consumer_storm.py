"""A storm over five members of one group: nothing is missing, nothing happens twice, order holds.

The run is seeded; `OUTBOX_SEED` repeats one; `make soak` storms for two minutes and 100,000 events.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fix_stack
from commit_cutter import CommitCutter
from fix_consumer import Bench, make_bench
from fix_stack import Database, Stack
from forms import SEED, sized
from outbox_connectors.errors import ExitCode
from storm_lab import PATIENCE, Storm, Writer

SECONDS = sized(0.0, 120.0)
EVENTS = sized(10_000, 100_000)
STACK = "storm"

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(SECONDS + 5 * PATIENCE)]


@pytest.fixture(scope="module")
def servers() -> Iterator[Stack]:
    """A stack of its own, because its servers are killed."""
    with fix_stack.in_use(STACK):
        fix_stack.run(STACK, "up", "postgres", "kafka")
        yield fix_stack._stack(STACK)


@pytest.fixture
def bench(servers: Stack, new_database: Callable[[Stack], Database], pipeline_name: str) -> Bench:
    fix_stack.run(STACK, "up", "postgres", "kafka")  # another storm may have left them dead
    return make_bench(servers, new_database(servers), pipeline_name, partitions=6)


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_a_storm_over_a_group_loses_repeats_and_reorders_nothing(
    bench: Bench, tmp_path: Path, protocol: str
) -> None:
    chance = random.Random(f"{SEED} {protocol}")
    environ = bench.server.environ
    writer = Writer(bench, max(500.0, EVENTS / SECONDS if SECONDS else 0), random.Random(chance.random()))
    with CommitCutter(environ["PGHOST"], int(environ["PGPORT"])).running() as cutter:
        storm = Storm(bench, protocol, tmp_path, cutter, chance)
        try:
            storm.begin()
            writer.start()
            storm.blow(time.monotonic() + SECONDS)
            writer.finish(EVENTS)
            storm.calm()
            storm.drain(len(writer.sent))
            bench.server.kill("kafka")  # a member that is told to stop does not wait for it
            codes = storm.end()
        finally:
            writer.stop()
            storm.destroy()
    ledger = storm.ledger(writer.sent)
    print(
        f"seed={SEED} protocol={protocol} {ledger} repeated={writer.repeated} "
        f"cuts={cutter.done} accidents={dict(storm.happened)}"
    )
    assert (ledger.missing, ledger.twice, ledger.wrong, ledger.out_of_order, ledger.dead) == (0, 0, 0, 0, 0)
    # One may have been told to stop before it had begun, or to begin without a broker.
    assert 0 in codes
    assert set(codes) <= {0, -signal.SIGTERM, ExitCode.UNREACHABLE}
    assert min(cutter.done.values()) > 0
