"""Batch numbers: decide from PostgreSQL's and Kafka's what a shard has to do next. Pure.

PostgreSQL has one row per shard: batch n and its ids, written in the transaction that deletes batch
n - 1. Kafka has the number of the last batch, written in the transaction that holds its records. So a
worker that takes over a shard knows whether the last batch is in the topics, whatever was killed when.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a shard stands. `published` is in the topics while its rows may still be in the outbox."""

    last: int = 0  # the number of the last batch: the next one gets a greater number
    published: int | None = None  # batch whose rows are to be deleted
    unsent: int | None = None  # batch whose rows have to be sent, exactly those


def resume(noted: int | None, committed: int | None) -> Progress:
    """Decide what a new owner of a shard begins with.

    `noted` is the batch in PostgreSQL, None when there was never one. `committed` is Kafka's number,
    None when Kafka does not know one (the progress topic was made anew): then the batch is sent again,
    since a repeated event is better than a lost one.
    """
    if noted is None:
        return Progress(last=committed or 0)
    if committed is None or committed < noted:
        return Progress(last=noted, unsent=noted)
    return Progress(last=committed, published=noted)
