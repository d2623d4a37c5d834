"""`outboxctl tail`: look at the events that arrive, without anybody noticing."""

from __future__ import annotations

import re

import click

from outbox_connectors.definition import Kafka
from outbox_connectors.errors import ExitCode
from outbox_pipeline.cli import Invocation, output, pass_invocation
from outbox_pipeline.servers import topic_reader as reading
from outbox_pipeline.standard_output import reader_gone


@click.command()
@click.option("--from-beginning", is_flag=True, help="Start with the oldest records, not with new ones.")
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Only this topic. Repeatable.")
@click.option(
    "--aggregate", "aggregates", multiple=True, metavar="TYPE", help="Only this aggregate type. Repeatable."
)
@click.option("--max", "limit", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop after this time. Exit code 1 when --max was not reached by then.",
)
@pass_invocation
def tail(
    invocation: Invocation,
    from_beginning: bool,
    topics: tuple[str, ...],
    aggregates: tuple[str, ...],
    limit: int | None,
    timeout_seconds: float | None,
) -> int:
    """Print the events that arrive on Kafka: time, topic, key, type, id, payload.

    Joins no consumer group and commits nothing, so no consumer is disturbed. Control characters
    are escaped, bytes that are not UTF-8 are shown as hex. Ctrl-C ends it, and so does a reader
    that leaves, as `head` does, with the next record; the exit code is 0 then.

    With --json each record is one JSON object on a line of its own.
    """
    kafka = invocation.definition().kafka
    pattern = _pattern(kafka, topics, aggregates)
    shown = 0
    try:
        with reading.Reader(kafka) as reader:
            found = reader.follow(pattern, from_end=not from_beginning)
            output.progress(_beginning(found, pattern, from_beginning))
            for arrived in reading.arrivals(reader, pattern, limit=limit, timeout_seconds=timeout_seconds):
                if invocation.json:
                    output.line(reading.document_line(arrived))
                else:
                    output.line("  ".join(reading.row(arrived)))
                shown += 1
                if reader_gone():
                    return ExitCode.OK
    except KeyboardInterrupt:
        return ExitCode.OK
    if limit is not None and shown < limit:
        output.progress(f"{shown} of {limit} records arrived within {timeout_seconds:g} s")
        return ExitCode.FAILED
    return ExitCode.OK


def _pattern(kafka: Kafka, topics: tuple[str, ...], aggregates: tuple[str, ...]) -> re.Pattern[str]:
    names = [*topics, *(kafka.topic_of(aggregate) for aggregate in aggregates)]
    return re.compile("|".join(map(re.escape, names))) if names else reading.topic_pattern(kafka.topic)


def _beginning(found: frozenset[str], pattern: re.Pattern[str], from_beginning: bool) -> str:
    if not found:
        return f"no topic matches {pattern.pattern} yet; waiting for one"
    start = "from the beginning" if from_beginning else "new records only (--from-beginning for all)"
    return f"reading {', '.join(sorted(found))}, {start}"
