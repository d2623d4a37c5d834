"""From facts to one verdict: apply every rule and choose the most urgent finding, causes before effects."""

from __future__ import annotations

from outbox_connectors.findings import Severity
from outbox_pipeline.watch.facts import Facts, facts_of
from outbox_pipeline.watch.formatting import duration, number, size
from outbox_pipeline.watch.history import History, remember
from outbox_pipeline.watch.rules import Rule, consumer, groups, server, slot
from outbox_pipeline.watch.sample import PostgresSample, Sample
from outbox_pipeline.watch.thresholds import Thresholds
from outbox_pipeline.watch.verdict import Verdict, VerdictKey, WatchFinding, rank

# Among findings of equal severity the earlier rule wins: it is the cause of the later ones.
RULES: tuple[Rule, ...] = (
    slot.slot_lost,
    slot.slot_missing,
    slot.slot_foreign,
    slot.rescue_window,
    slot.publication_missing,
    slot.table_missing,
    slot.table_not_published,
    consumer.slot_taken,  # before the offset: nothing can be recovered while another process holds the slot
    slot.offset_ahead_of_slot,
    slot.offset_behind_slot,
    slot.offset_unreadable,
    server.postgres_unreachable,
    consumer.message_too_large,
    consumer.task_failed,
    consumer.connector_stopped,
    consumer.connector_paused,
    consumer.consumer_frozen,
    consumer.decode_loop,
    consumer.sink_not_acking,
    server.kafka_unreachable,  # Connect keeps its state there: without Kafka it answers nothing
    consumer.connect_unreachable,
    consumer.consumer_down,
    server.failover_not_ready,
    consumer.pinned_by_transaction,
    consumer.heartbeat_missing,
    groups.group_stopped,
    groups.group_lagging,
    server.outbox_not_vacuumable,
    server.catalog_xmin_old,
    server.unexplained_wal,
    server.wal_unbounded,
    server.slots_nearly_full,
    consumer.catching_up,
)


def assess(history: History, sample: Sample, thresholds: Thresholds) -> Verdict:
    """Assess a sample; `history` does not hold it yet. Pure: the same input gives the same verdict."""
    return verdict_of(facts_of(remember(history, sample), sample, thresholds))


def verdict_of(facts: Facts) -> Verdict:
    """Apply every rule and choose the verdict among the findings."""
    findings = [finding for rule in RULES if (finding := rule(facts)) is not None]
    findings.sort(key=lambda finding: -rank(finding.severity))  # stable: precedence within a severity
    findings.append(_in_order(facts))
    first, *others = findings
    return Verdict(
        key=first.key,
        severity=first.severity,
        cause=first.cause,
        next_step=first.next_step,
        evidence=first.evidence,
        findings=tuple(
            finding for finding in others if finding.key not in (VerdictKey.HEALTHY, VerdictKey.IDLE)
        ),
        unseen=facts.sample.unseen,
        notes=facts.notes + _unseen_holder(facts) + _no_tick(facts) + _missing_rights(facts.postgres),
        seconds_left=facts.left,
        catch_up_seconds=consumer.catch_up_seconds(facts) if first.key is VerdictKey.CATCHING_UP else None,
    )


def _in_order(facts: Facts) -> WatchFinding:
    """Say that nothing is wrong: healthy, or idle where nothing was written."""
    postgres = facts.postgres
    if postgres is not None and postgres.server.in_recovery:
        return WatchFinding(
            VerdictKey.HEALTHY, Severity.OK, "this server is a standby; nothing is wrong with its slots"
        )
    quiet = facts.confirmed_still >= facts.thresholds.idle and not facts.inserted_since
    waiting = (
        f"{size(facts.unconfirmed)} of WAL unconfirmed" if facts.unconfirmed is not None else "slot not seen"
    )
    evidence: dict[str, object] = {"unconfirmed": facts.unconfirmed, "insert_rate": facts.insert_rate}
    if quiet:
        words = f"nothing was written to the outbox for {duration(facts.confirmed_still)}; {waiting}"
        return WatchFinding(VerdictKey.IDLE, Severity.OK, words, "", evidence)
    flow = f"{number(facts.insert_rate)} rows/s in, " if facts.insert_rate is not None else ""
    latency = facts.sample.canary_seconds
    proof = f", commit to Kafka in {latency * 1000:.0f} ms" if latency is not None else ""
    return WatchFinding(VerdictKey.HEALTHY, Severity.OK, f"events flow: {flow}{waiting}{proof}", "", evidence)


def _unseen_holder(facts: Facts) -> tuple[str, ...]:
    note = consumer.unknown_holder(facts)
    return (note,) if note else ()


def _no_tick(facts: Facts) -> tuple[str, ...]:
    if facts.sample.foreign:
        return (f"{facts.sample.foreign}: it gets no ticks, and outboxctl watch only observes it",)
    return (f"no tick is sent: {facts.sample.no_tick}",) if facts.sample.no_tick else ()


def _missing_rights(postgres: PostgresSample | None) -> tuple[str, ...]:
    if postgres is None or postgres.server.monitor:
        return ()
    return (
        "without pg_monitor the size of pg_wal, the age of transactions and the consumer's answers "
        "stay unseen: "
        "GRANT pg_monitor TO this role",
    )
