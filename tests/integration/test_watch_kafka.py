"""What the watch reads from a real Kafka, and that looking never ends the process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from asking import administrator
from fix_stack import Stack, _stack, in_use, run
from outbox_connectors.definition import Kafka, TopicSpec
from outbox_pipeline.errors import Unreachable
from outbox_pipeline.servers import topics
from outbox_pipeline.watch.sources.kafka import KafkaSource
from waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack

PROGRAM = Path(__file__).parents[1] / "kafka_looks.py"
BROKER = "restarted-broker"  # a stack of its own: nobody else expects its broker to go away
RESTARTS = 2  # with AdminClient.list_consumer_group_offsets the first or the second ended the process
RACING_SECONDS = 30.0  # AdminClient.list_offsets ended it in less than 20, on two busy cores


def kafka(bootstrap: str, prefix: str) -> Kafka:
    template = TopicSpec(prefix + ".{aggregate_type}", 1, 1, {})
    return Kafka({"bootstrap.servers": bootstrap}, template.name, template, {})


def make_topic(broker: Kafka, name: str, partitions: int) -> None:
    topics.create(broker, [TopicSpec(name, partitions, 1, {})])


def produce(bootstrap: str, topic: str, partition: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for _ in range(count):
        producer.produce(topic, b"x", partition=partition)
    assert producer.flush(PATIENCE_SECONDS) == 0


def commit(bootstrap: str, group: str, place: TopicPartition) -> None:
    client = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    until(lambda: _committed(client, place), "a commit")
    client.close()


def _committed(client: Consumer, place: TopicPartition) -> bool:
    client.commit(offsets=[place], asynchronous=False)
    return True


def trim(broker: Kafka, to: TopicPartition) -> None:
    """Delete the records before an offset. The leaders are known by then, so this cannot crash."""
    admin = administrator(broker.client)
    assert to.topic in admin.list_topics(timeout=PATIENCE_SECONDS).topics
    admin.delete_records([to])[to].result(PATIENCE_SECONDS)


@contextmanager
def looking(broker: Kafka, manner: str, *groups: str) -> Iterator[subprocess.Popen[str]]:
    """A process that looks at Kafka all the time the block takes, and has to live through it."""
    bootstrap = broker.client["bootstrap.servers"]
    command = [sys.executable, str(PROGRAM), bootstrap, broker.topic, manner, *groups]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "looking\n"
        yield process
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, f"ended with {process.returncode}: {err}"
    assert int(out) > 0


def test_a_sample_tells_ends_starts_and_what_groups_committed(stack: Stack, pipeline_name: str) -> None:
    broker, topic, group = kafka(stack.kafka, pipeline_name), f"{pipeline_name}.order", f"{pipeline_name}.g"
    make_topic(broker, topic, 2)
    produce(stack.kafka, topic, 0, 5)
    produce(stack.kafka, topic, 1, 2)
    trim(broker, TopicPartition(topic, 0, 3))
    commit(stack.kafka, group, TopicPartition(topic, 0, 4))
    never = f"{pipeline_name}.never"

    sample = KafkaSource(broker, (group, never)).look()

    assert sample.ends == {(topic, 0): 5, (topic, 1): 2}
    assert sample.starts == {(topic, 0): 3, (topic, 1): 0}
    found = {seen.name: (seen.state, seen.members, seen.committed) for seen in sample.groups}
    assert found == {group: ("EMPTY", 0, {(topic, 0): 4}), never: ("DEAD", 0, {})}


def test_looking_joins_no_group_and_makes_none(stack: Stack, pipeline_name: str) -> None:
    broker, group = kafka(stack.kafka, pipeline_name), f"{pipeline_name}.g"
    make_topic(broker, f"{pipeline_name}.order", 1)
    source = KafkaSource(broker, (group,))
    assert [source.look().groups[0].state for _ in range(3)] == ["DEAD"] * 3
    source.close()
    admin = administrator(broker.client)
    listed = admin.list_consumer_groups().result(PATIENCE_SECONDS)
    assert group not in {found.group_id for found in listed.valid}


def test_a_topic_that_was_deleted_since_the_last_look_is_left_out(stack: Stack, pipeline_name: str) -> None:
    broker = kafka(stack.kafka, pipeline_name)
    kept, deleted = f"{pipeline_name}.kept", f"{pipeline_name}.deleted"
    for name in (kept, deleted):
        make_topic(broker, name, 1)
    source = KafkaSource(broker, ())
    assert source.look().ends == {(kept, 0): 0, (deleted, 0): 0}
    admin = administrator(broker.client)
    admin.delete_topics([deleted])[deleted].result(PATIENCE_SECONDS)
    until(lambda: source.look().ends == {(kept, 0): 0}, "the deleted topic left out")
    admin.delete_topics([kept])[kept].result(PATIENCE_SECONDS)
    until(lambda: source.look().ends == {}, "no topic left")


def test_a_broker_that_does_not_answer_is_told_with_the_reason() -> None:
    source = KafkaSource(kafka("127.0.0.1:1", "nowhere"), ("g",))
    with pytest.raises(Unreachable, match=r"Kafka does not answer: .*Connection refused"):
        source.look()


def test_metadata_that_arrives_during_a_look_never_ends_the_process(stack: Stack, pipeline_name: str) -> None:
    """AdminClient.list_offsets goes on using a request that another thread has finished and freed."""
    broker = kafka(stack.kafka, pipeline_name)
    for name in range(4):
        make_topic(broker, f"{pipeline_name}.t{name}", 3)
    with looking(broker, "preempted") as process:
        end = time.monotonic() + RACING_SECONDS
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.1)


def test_a_coordinator_that_restarts_never_ends_the_process() -> None:
    """AdminClient.list_consumer_group_offsets crashes when the broker is no coordinator (yet)."""
    with in_use(BROKER):
        run(BROKER, "up", "kafka")
        server = _stack(BROKER)
        broker = kafka(server.kafka, "restarted")
        make_topic(broker, "restarted.order", 1)
        commit(server.kafka, "readers", TopicPartition("restarted.order", 0, 0))
        with looking(broker, "steady", "readers") as process:
            for _ in range(RESTARTS):
                server.stop("kafka")
                server.start("kafka")
                if process.poll() is not None:
                    break
