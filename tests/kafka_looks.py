"""A process that looks at Kafka as the watch does, from several threads, until it is told to stop.

Its exit code is the finding: a call that crashes inside librdkafka ends the process with a signal. When
stdin is closed it prints how many looks Kafka answered, and ends.

Arguments: bootstrap servers, topic template, `steady` or `preempted`, then the groups to look at.

`preempted` makes a coincidence the rule: metadata is forgotten at once and fetched all the time, and the
threads that look share one CPU with those of librdkafka and give way to each of them, at any instruction.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable
from functools import partial

from confluent_kafka import KafkaException

from outbox_connectors.definition import Kafka, TopicSpec
from outbox_pipeline.errors import Unreachable
from outbox_pipeline.watch.sources.kafka import KafkaSource
from waiting import until

THREADS = {"steady": 4, "preempted": 16}  # a broker that starts needs the CPU as well
FORGETFUL = {"topic.metadata.refresh.interval.ms": "10", "metadata.max.age.ms": "1"}


def give_way() -> None:
    """Let every other thread of this CPU run before this one."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def look_until(
    stop: threading.Event, source: KafkaSource, begin: Callable[[], None], seen: list[int]
) -> None:
    """Look again and again, whether Kafka answers or not."""
    begin()
    while not stop.is_set():
        if answered(source):
            seen.append(1)
        else:
            stop.wait(0.01)


def answered(source: KafkaSource) -> bool:
    """Look once and say whether Kafka answered."""
    try:
        source.look()
    except (KafkaException, Unreachable):
        return False
    return True


def main(servers: str, template: str, manner: str, *groups: str) -> None:
    faulthandler.enable()
    preempted = manner == "preempted"
    if preempted:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    client = {"bootstrap.servers": servers, **(FORGETFUL if preempted else {})}
    kafka = Kafka(client=client, topic=template, defaults=TopicSpec("t", 1, 1, {}), aggregates={})
    sources = [KafkaSource(kafka, groups) for _ in range(THREADS[manner])]
    for source in sources:  # their threads are made here, since a new thread gets the priority of its maker
        until(partial(answered, source), "the first look")
    stop, seen = threading.Event(), list[int]()
    begin = give_way if preempted else lambda: None
    threads = [threading.Thread(target=look_until, args=(stop, source, begin, seen)) for source in sources]
    for thread in threads:
        thread.start()
    print("looking", flush=True)
    sys.stdin.read()
    stop.set()
    for thread in threads:
        thread.join()
    print(len(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
