"""Build samples of the watch by hand: a healthy pipeline, and changes to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from outbox_pipeline.watch.assess import assess
from outbox_pipeline.watch.history import History, remember
from outbox_pipeline.watch.sample import (
    ConnectSample,
    GroupSample,
    Holder,
    KafkaSample,
    OutboxSample,
    PostgresSample,
    Publication,
    Sample,
    Sender,
    ServerSample,
    ServerSettings,
    Slot,
    TaskSample,
    WatchedNames,
)
from outbox_pipeline.watch.thresholds import Thresholds
from outbox_pipeline.watch.verdict import Unseen, Verdict, VerdictKey

MIB = 1024 * 1024
NOW = 1_800_000_000.0
WAL = 10_000 * MIB

NAMES = WatchedNames(
    pipeline="shop",
    database="shop",
    slot="shop_outbox",
    publication="shop_outbox",
    table="public.outbox",
    connector="shop",
    connector_user="shop_cdc",
    groups=("billing",),
    topics=("outbox.event.order",),
    ticker="outboxctl watch shop",
)
SETTINGS = ServerSettings(
    wal_level="logical",
    segment_bytes=16 * MIB,
    max_wal_bytes=1024 * MIB,
    slot_cap_bytes=10_240 * MIB,
    wal_keep_bytes=0,
    checkpoint_timeout=300.0,
    checkpoint_completion_target=0.9,
    max_replication_slots=10,
    wal_sender_timeout=60.0,
    idle_slot_timeout=0.0,
)
SERVER = ServerSample(
    version=180000,
    system_identifier="7000000000000000001",
    timeline=1,
    started_at=NOW - 86_400,
    clock=NOW,
    in_recovery=False,
    wal_position=WAL,
    redo_position=WAL - 10 * MIB,
    checkpoint_at=NOW - 60,
    wal_dir_bytes=512 * MIB,
    archive_failing=False,
    settings=SETTINGS,
    monitor=True,
)
SLOT = Slot(
    name="shop_outbox",
    kind="logical",
    plugin="pgoutput",
    database="shop",
    temporary=False,
    active_pid=100,
    restart_lsn=WAL - 2000,
    confirmed_lsn=WAL - 1000,
    wal_status="reserved",
    safe_wal_bytes=10_240 * MIB,
    xmin_age=None,
    catalog_xmin_age=100,
    catalog_xmin=7000,
)
SENDER = Sender(
    pid=100,
    backend_type="walsender",
    user="shop_cdc",
    application="Debezium Streaming",
    client="10.0.0.7",
    state="streaming",
    sent_lsn=WAL,
    flush_lag=0.05,
    reply_at=NOW - 1,
)
OUTBOX = OutboxSample(
    inserted=5000,
    deleted=0,
    live=5000,
    dead=0,
    estimated_rows=5000,
    bytes=4 * MIB,
    autovacuum_seconds=60.0,
    stats_reset_at=None,
    readable=True,
    oldest_seconds=3600.0,
)
POSTGRES = PostgresSample(
    server=SERVER,
    slots=(SLOT,),
    senders=(SENDER,),
    holders=(),
    outbox=OUTBOX,
    publication=Publication(publishes_insert=True, covers_table=True, row_filter=False),
    tickers=0,
)
CONNECT = ConnectSample(
    state="RUNNING",
    worker="10.0.0.7:8083",
    tasks=(TaskSample(0, "RUNNING"),),
    offset_lsn=WAL - 1000,
    offset_type="INSERT",
    config={"plugin.name": "pgoutput", "database.user": "shop_cdc", "slot.name": "shop_outbox"},
)
PARTITION = ("outbox.event.order", 0)
GROUP = GroupSample(name="billing", state="STABLE", members=1, committed={PARTITION: 5000})
KAFKA = KafkaSample(ends={PARTITION: 5000}, starts={PARTITION: 0}, groups=(GROUP,))
HEALTHY = Sample(at=NOW, names=NAMES, postgres=POSTGRES, connect=CONNECT, kafka=KAFKA)
WRITER = Holder(
    kind="backend",
    pid=555,
    gid=None,
    database="billing",
    user="billing_app",
    application="report",
    state="idle in transaction",
    xid=7000,
    xid_age=10,
    xmin_age=None,
    seconds=1200.0,
)


def postgres_of(sample: Sample) -> PostgresSample:
    """The PostgreSQL part of a sample that has one."""
    assert isinstance(sample.postgres, PostgresSample)
    return sample.postgres


def with_postgres(sample: Sample, **changes: Any) -> Sample:
    """Change the PostgreSQL part."""
    return replace(sample, postgres=replace(postgres_of(sample), **changes))


def with_server(sample: Sample, **changes: Any) -> Sample:
    """Change the server."""
    return with_postgres(sample, server=replace(postgres_of(sample).server, **changes))


def with_settings(sample: Sample, **changes: Any) -> Sample:
    """Change server settings."""
    return with_server(sample, settings=replace(postgres_of(sample).server.settings, **changes))


def with_slot(sample: Sample, **changes: Any) -> Sample:
    """Change our slot, the first one."""
    first, *others = postgres_of(sample).slots
    return with_postgres(sample, slots=(replace(first, **changes), *others))


def with_sender(sample: Sample, **changes: Any) -> Sample:
    """Change the process that holds our slot."""
    return with_postgres(sample, senders=(replace(postgres_of(sample).senders[0], **changes),))


def with_outbox(sample: Sample, **changes: Any) -> Sample:
    """Change the outbox table's statistics."""
    outbox = postgres_of(sample).outbox
    assert outbox is not None
    return with_postgres(sample, outbox=replace(outbox, **changes))


def with_connect(sample: Sample, **changes: Any) -> Sample:
    """Change what Connect says."""
    assert isinstance(sample.connect, ConnectSample)
    return replace(sample, connect=replace(sample.connect, **changes))


def with_group(sample: Sample, end: int = 5000, **changes: Any) -> Sample:
    """Change the group, and where the topic ends."""
    return replace(
        sample,
        kafka=KafkaSample(ends={PARTITION: end}, starts={PARTITION: 0}, groups=(replace(GROUP, **changes),)),
    )


def later(sample: Sample, seconds: float, *, wal: int = 0, reply: bool = True) -> Sample:
    """The same some seconds later: clocks move on, WAL grows, the consumer answers."""
    sample = replace(sample, at=sample.at + seconds)
    if not isinstance(sample.postgres, PostgresSample):
        return sample
    server = sample.postgres.server
    sample = with_server(sample, clock=server.clock + seconds, wal_position=server.wal_position + wal)
    if reply and postgres_of(sample).senders:
        reply_at = postgres_of(sample).senders[0].reply_at
        sample = with_sender(sample, reply_at=reply_at + seconds if reply_at is not None else None)
    return sample


def history_of(samples: Iterable[Sample]) -> History:
    """Remember samples in their order."""
    history = History()
    for sample in samples:
        history = remember(history, sample)
    return history


def verdict(*samples: Sample, thresholds: Thresholds | None = None) -> Verdict:
    """Assess the last sample with the others as its past."""
    *past, present = samples
    return assess(history_of(past), present, thresholds or Thresholds())


CONNECT_GONE = Unseen("connect", "http://connect:8083: connection refused", "check connect.url")
KAFKA_GONE = Unseen("kafka", "kafka:9092: connection refused", "check bootstrap.servers")
POSTGRES_GONE = Unseen("postgres", "db:5432: connection refused", "check host and port")


def outranked(answer: Verdict) -> set[VerdictKey]:
    return {finding.key for finding in answer.findings}


def down(sample: Sample = HEALTHY) -> Sample:
    """Nobody holds the slot."""
    return with_slot(with_postgres(sample, senders=()), active_pid=None)


def growing(seconds: int, rows: int = 1, **sender: object) -> list[Sample]:
    """The consumer answers, WAL grows by 1 MiB/s, the position stands still."""
    steps = []
    for second in range(0, seconds + 1, 10):
        step = later(HEALTHY, second, wal=second * MIB)
        step = with_outbox(step, inserted=5000 + rows * second)
        steps.append(with_sender(step, **sender) if sender else step)
    return steps
