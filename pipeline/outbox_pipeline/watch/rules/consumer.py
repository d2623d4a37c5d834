"""Rules about the consumer of the slot: another process, a failed task, a hang, nothing confirmed."""

from __future__ import annotations

from itertools import pairwise

from outbox_connectors.findings import Severity
from outbox_pipeline.connect import too_large_message
from outbox_pipeline.servers.positions import RECOVER, PositionCode, SlotHolder
from outbox_pipeline.servers.shell_commands import psql
from outbox_pipeline.servers.slot_holder import Whose
from outbox_pipeline.watch.facts import Facts, standing_since
from outbox_pipeline.watch.formatting import count, duration, size
from outbox_pipeline.watch.rules import look_at, time_left, urgency, waiting
from outbox_pipeline.watch.rules.positions import holder, position, process_of, task_runs
from outbox_pipeline.watch.rules.server import still_delivers
from outbox_pipeline.watch.sample import ConnectSample, PostgresSample
from outbox_pipeline.watch.verdict import VerdictKey, WatchFinding


def down_seconds(facts: Facts) -> float:
    """Return for how long no process has held the slot, as far as is known."""
    if facts.slot is None or facts.slot.active:
        return 0.0
    since = standing_since(facts.points, lambda p: 0 if p.pid is None and p.confirmed is not None else p.pid)
    watched = facts.sample.at - since.at if since else 0.0
    return max(watched, facts.slot.inactive_seconds or 0.0)


def slot_taken(facts: Facts) -> WatchFinding | None:
    """Another process holds the slot, so the connector cannot."""
    sender, slot, names = facts.sender, facts.slot, facts.names
    found = position(facts, PositionCode.SLOT_TAKEN)
    if slot is None or sender is None or found is None:
        return None
    held = f"slot {slot.name} is held by {process_of(sender)}"
    return WatchFinding(
        VerdictKey(found.code),
        found.severity,
        f"{held}; the connector cannot use it, and what that process confirms never reaches Kafka"
        if found.severity is Severity.CRITICAL
        else f"{held}; whether that is connector {names.connector} cannot be seen",
        found.next_step,
        {
            "pid": sender.pid,
            "user": sender.user,
            "application": sender.application,
            "client": sender.client,
            "whose": holder(facts).value,
        },
    )


def unknown_holder(facts: Facts) -> str:
    """Return a note where a Debezium holds the slot and it cannot be seen whether it is the connector."""
    sender = facts.sender
    found = (
        None if sender is None else SlotHolder(process_of(sender), holder(facts), task_runs(facts.connect))
    )
    if found is None or facts.is_copy or not found.debezium or found.whose is not Whose.UNKNOWN:
        return ""
    if not found.task_runs:
        return ""  # a finding says it
    return (
        f"slot {facts.names.slot} is read by {found.process}: whether that is connector "
        f"{facts.names.connector} cannot be seen; compare the user with the one that its database.user "
        "stands for"
    )


def message_too_large(facts: Facts) -> WatchFinding | None:
    """The task failed over something too large for a record or for memory; it fails again at every start."""
    connect, names = facts.connect, facts.names
    if connect is None:
        return None
    traces = [task.trace_line for task in connect.tasks if task.state == "FAILED"]
    trace = next((line for line in traces if too_large_message.is_sign(line)), None)
    if trace is None:
        return None
    return WatchFinding(
        VerdictKey.MESSAGE_TOO_LARGE,
        Severity.CRITICAL,
        f"connector {names.connector} has met something too large, a logical message or a row, and meets it "
        f"again at every start: {trace}{waiting(facts)}{time_left(facts)}",
        RECOVER,
        {"connector_state": connect.state, "tasks": [task.state for task in connect.tasks]},
    )


def task_failed(facts: Facts) -> WatchFinding | None:
    """The connector or its task has FAILED and stays so until it is restarted."""
    connect, names = facts.connect, facts.names
    if connect is None:
        return None
    failed = [task for task in connect.tasks if task.state == "FAILED"]
    if not failed and connect.state != "FAILED":
        return None
    what = f"task {failed[0].id} of connector {names.connector}" if failed else f"connector {names.connector}"
    trace = (failed[0].trace_line if failed else connect.trace_line) or "Connect gives no reason"
    return WatchFinding(
        VerdictKey.TASK_FAILED,
        Severity.CRITICAL,
        f"{what} has failed: {trace}{waiting(facts)}{time_left(facts)}",
        "outboxctl connectors restart --failed",
        {"connector_state": connect.state, "tasks": [task.state for task in connect.tasks]},
    )


def connector_stopped(facts: Facts) -> WatchFinding | None:
    """The connector was stopped by a user: its slot is free and keeps WAL."""
    return _on_purpose(facts, "STOPPED", VerdictKey.CONNECTOR_STOPPED, "is stopped")


def connector_paused(facts: Facts) -> WatchFinding | None:
    """The connector was paused by a user: it holds its slot, delivers nothing, and WAL piles up."""
    return _on_purpose(facts, "PAUSED", VerdictKey.CONNECTOR_PAUSED, "is paused (it still holds its slot)")


def _on_purpose(facts: Facts, state: str, key: VerdictKey, words: str) -> WatchFinding | None:
    connect = facts.connect
    if connect is None or connect.state != state:
        return None
    return WatchFinding(
        key,
        urgency(facts, Severity.WARNING),
        f"connector {facts.names.connector} {words}{waiting(facts)}{time_left(facts)}",
        "outboxctl connectors resume",
        {"connector_state": connect.state, "worker": connect.worker},
    )


def consumer_frozen(facts: Facts) -> WatchFinding | None:
    """The consumer holds the slot but has fallen silent: its process or the network stands still."""
    slot, sender, postgres = facts.slot, facts.sender, facts.postgres
    if slot is None or sender is None or postgres is None or sender.reply_at is None:
        return None
    silent = silent_seconds(facts, postgres)
    limit = max(facts.thresholds.frozen, postgres.server.settings.wal_sender_timeout / 2)
    if silent <= limit:
        return None
    timeout = postgres.server.settings.wal_sender_timeout
    ending = (
        f"; the server ends the connection after wal_sender_timeout ({duration(timeout)})" if timeout else ""
    )
    return WatchFinding(
        VerdictKey.CONSUMER_FROZEN,
        urgency(facts, Severity.WARNING, silent),
        f"the consumer of slot {slot.name} (process {sender.pid}, {sender.application or 'unknown'}, "
        f"from {sender.client or 'this host'}) has not answered for {duration(silent)}: its process "
        f"hangs or the network is cut{ending}{waiting(facts)}{time_left(facts)}",
        "outboxctl connectors status  # no answer: restart the worker; an answer: look at the network",
        {"reply_seconds": silent, "wait_event": sender.wait_event, "flush_lag": sender.flush_lag},
    )


def silent_seconds(facts: Facts, postgres: PostgresSample) -> float:
    """Return for how long the client has sent no status.

    `reply_time` is the client's clock (PostgreSQL docs), so its age is off by the difference of two
    clocks. The smallest age seen while it still moved is that difference, at most a status interval
    (10 s in pgjdbc) too large. With nothing but one reply seen, an age beyond wal_sender_timeout can
    only be the clocks, since the server would have ended the connection.
    """
    present = facts.present
    if present.reply_at is None or present.reply_age is None:
        return 0.0
    since = standing_since(facts.points, lambda p: p.reply_at)
    watched = present.at - since.at if since else 0.0
    replies = {
        p.reply_at: p.reply_age for p in reversed(facts.points) if p.reply_at and p.reply_age is not None
    }
    if len(replies) > 1:
        return max(watched, present.reply_age - min(replies.values()))
    timeout = postgres.server.settings.wal_sender_timeout
    impossible = timeout > 0 and present.reply_age > timeout + facts.thresholds.frozen / 3
    return watched if impossible else max(watched, present.reply_age)


def decode_loop(facts: Facts) -> WatchFinding | None:
    """The same transaction is decoded and spilled again and again: the session ends before it is through.

    Spill counters count every decoding anew (measured on 14 and 18), so growing spill beside an
    unmoved position, in more than one session, is a loop.
    """
    slot = facts.slot
    if slot is None or slot.lost or slot.confirmed_lsn is None:
        return None
    points = [p for p in facts.points if p.spill_bytes is not None and p.confirmed == slot.confirmed_lsn]
    rounds = 0
    for before, after in pairwise(points):
        grew = (after.spill_bytes or 0) > (before.spill_bytes or 0)
        if grew and (after.pid is None or after.pid != before.pid):
            rounds += 1
    if rounds < 2:
        return None
    spilled = (points[-1].spill_bytes or 0) - (points[0].spill_bytes or 0)
    standing = facts.sample.at - points[0].at
    return WatchFinding(
        VerdictKey.DECODE_LOOP,
        urgency(facts, Severity.WARNING, standing),
        f"slot {slot.name} decodes the same WAL again and again: {size(spilled)} spilled to disk in "
        f"{rounds} rounds "
        f"within {duration(standing)}, and the position has not moved{waiting(facts)}{time_left(facts)}",
        psql("ALTER SYSTEM SET wal_sender_timeout = '10min'") + " -c 'SELECT pg_reload_conf()'"
        "  # and raise logical_decoding_work_mem; find the transaction that is so large",
        {"rounds": rounds, "spilled_bytes": spilled, "spill_bytes": slot.spill_bytes},
    )


def connect_unreachable(facts: Facts) -> WatchFinding | None:
    """Kafka Connect does not answer; if the slot is free as well, that is why."""
    unseen = facts.unreachable("connect")
    if unseen is None:
        return None
    down = down_seconds(facts)
    flowing = facts.slot is not None and facts.slot.active
    effect = (
        "the slot is still in use" if flowing else f"nobody uses the slot{waiting(facts)}{time_left(facts)}"
    )
    return WatchFinding(
        VerdictKey.CONNECT_UNREACHABLE,
        urgency(facts, Severity.WARNING, down),
        f"{unseen.reason}; {effect}",
        unseen.remedy or "outboxctl connectors status",
        {"slot_active": flowing, "down_seconds": down},
    )


def consumer_down(facts: Facts) -> WatchFinding | None:
    """No process uses the slot."""
    slot, connect = facts.slot, facts.connect
    if slot is None or slot.active or slot.lost or facts.is_copy:
        return None
    down = down_seconds(facts)
    why, step = _why_down(connect, facts.names.connector)
    pids = {p.pid for p in facts.past if p.pid is not None}
    if len(pids) >= facts.thresholds.flapping:
        why = f"it connects and disconnects again and again ({count(len(pids), 'session')} seen); {why}"
    seconds = f" for {duration(down)}" if down >= 1 else ""
    return WatchFinding(
        VerdictKey.CONSUMER_DOWN,
        urgency(facts, Severity.WARNING, down),
        f"nobody has used slot {slot.name}{seconds}: {why}{waiting(facts)}{time_left(facts)}",
        step,
        {"down_seconds": down, "sessions_seen": len(pids)},
    )


def _why_down(connect: ConnectSample | None, name: str) -> tuple[str, str]:
    if connect is None:
        return "and Kafka Connect was not asked why", "outboxctl connectors status"
    if connect.state is None:
        return f"Kafka Connect knows no connector {name}", "outboxctl connectors register"
    states = ", ".join(task.state for task in connect.tasks) or "no task"
    return (
        f"connector {name} is {connect.state}, task: {states}, yet not connected to PostgreSQL",
        "outboxctl connectors status  # then the worker's log: the reason is only there",
    )


def sink_not_acking(facts: Facts) -> WatchFinding | None:
    """The consumer answers and receives, but confirms nothing: Kafka does not take the events."""
    slot, sender = facts.slot, facts.sender
    if slot is None or not slot.active or facts.unconfirmed is None or silent(facts):
        return None
    kafka = facts.unreachable("kafka")
    unreachable = kafka is not None and not kafka.refused
    pending = bool(facts.inserted_since) or ticking(facts)
    standing = unacknowledged_seconds(facts)
    if unreachable:
        if still_delivers(facts) or not facts.unconfirmed or not pending:
            return None  # out of reach only for us, or nothing to deliver
    elif standing < facts.thresholds.stuck or not pending or not facts.undelivered:
        return None
    reason = kafka.reason if kafka is not None and unreachable else _why_not_taken(facts)
    rows = f" and {count(facts.inserted_since, 'row')} written since" if facts.inserted_since else ""
    return WatchFinding(
        VerdictKey.SINK_NOT_ACKING,
        urgency(facts, Severity.WARNING, standing),
        f"the connector reads slot {slot.name} but has confirmed nothing for {duration(standing)}{rows}: "
        f"{reason}{waiting(facts)}{time_left(facts)}",
        "outboxctl doctor" if not unreachable else "start the brokers; the connector goes on by itself",
        {
            "standing_seconds": standing,
            "flush_lag": sender.flush_lag if sender else None,
            "inserted_since": facts.inserted_since,
        },
    )


def _why_not_taken(facts: Facts) -> str:
    missing = facts.kafka.missing_topics if facts.kafka else ()
    if missing:
        return f"topic {missing[0]} does not exist, and Connect's producer waits for it for ever"
    return "Kafka accepts nothing: a broker is down, a topic or an ACL is missing, or a record is too large"


def unacknowledged_seconds(facts: Facts) -> float:
    """Return for how long the present consumer has had something to deliver and delivered nothing."""
    ticked = min(facts.confirmed_still, facts.ticking_seconds)
    waited = max(ticked, facts.pending_seconds)
    lag = facts.sender.flush_lag if facts.sender and facts.inserted_since else None
    standing = max(min(waited, facts.session_seconds), lag or 0.0)
    # Debezium confirms to the slot with the next record only, so a stored offset is the better witness.
    return standing if facts.offset_still is None else min(standing, facts.offset_still)


def silent(facts: Facts) -> bool:
    """Whether the consumer has stopped answering."""
    return consumer_frozen(facts) is not None


def ticking(facts: Facts) -> bool:
    """Whether a ticker gives the connector something to confirm even without events."""
    return bool(facts.postgres and facts.postgres.tickers)


def pinned_by_transaction(facts: Facts) -> WatchFinding | None:
    """The consumer is at the head, yet WAL piles up: an open transaction that has written pins restart_lsn.

    Anywhere on the server, prepared ones included (measured on 13 to 18). Restarting the connector
    does not help.
    """
    slot, postgres = facts.slot, facts.postgres
    if slot is None or postgres is None or facts.retained is None or facts.unconfirmed is None:
        return None
    gap = facts.retained - facts.unconfirmed
    limits = facts.thresholds
    cap = postgres.server.settings.slot_cap_bytes
    many = min(limits.pinned_bytes, cap // 10) if cap else limits.pinned_bytes
    holders = [h for h in postgres.holders if h.xid is not None]
    if not holders or gap < many or facts.unconfirmed > max(gap, limits.quiet_bytes):
        return None
    oldest = max(holders, key=lambda holder: holder.xid_age or 0)
    if oldest.seconds is not None and oldest.seconds < limits.pinned:
        return None
    age = f", open for {duration(oldest.seconds)}" if oldest.seconds is not None else ""
    return WatchFinding(
        VerdictKey.PINNED_BY_TRANSACTION,
        urgency(facts, Severity.WARNING),
        f"{oldest.title}{age} keeps {size(gap)} of WAL for slot {slot.name}; the consumer is not at fault "
        f"and restarting it will not help{time_left(facts)}",
        look_at(oldest),
        {
            "xid": oldest.xid,
            "catalog_xmin": slot.catalog_xmin,
            "gap_bytes": gap,
            "pid": oldest.pid,
            "gid": oldest.gid,
            "database": oldest.database,
        },
    )


def heartbeat_missing(facts: Facts) -> WatchFinding | None:
    """WAL grows, the outbox is quiet, and nothing gives the connector a position to confirm."""
    slot, sender = facts.slot, facts.sender
    if slot is None or not slot.active or facts.unconfirmed is None or silent(facts):
        return None
    if facts.unconfirmed < facts.thresholds.quiet_bytes or facts.inserted_since != 0 or ticking(facts):
        return None
    lag = sender.flush_lag if sender else None
    long_enough = facts.confirmed_still >= facts.thresholds.stuck or (lag or 0.0) >= facts.thresholds.stuck
    # WAL of another database only: nothing was sent, so there is no lag and no transaction counted.
    unsent = lag is None and facts.decoded_since == 0
    unsent = unsent and facts.confirmed_still >= facts.thresholds.stuck / 3
    if not (long_enough or unsent):
        return None
    who = f"no ticker ({facts.names.ticker}) is connected" if facts.names.ticker else "no heartbeat arrives"
    if facts.sample.no_tick:
        who = f"no tick is sent ({facts.sample.no_tick})"
    return WatchFinding(
        VerdictKey.HEARTBEAT_MISSING,
        urgency(facts, Severity.WARNING),
        f"other tables or databases write WAL while the outbox is quiet, and {who}, so slot {slot.name} "
        f"stands still{waiting(facts)}{time_left(facts)}; the next event frees it",
        "outboxctl watch" if facts.names.ticker and not facts.sample.no_tick else "outboxctl doctor",
        {"still_seconds": facts.confirmed_still, "flush_lag": lag, "tickers": 0},
    )


def catching_up(facts: Facts) -> WatchFinding | None:
    """The consumer works through a backlog."""
    slot = facts.slot
    if slot is None or not slot.active or facts.undelivered is None:
        return None
    came_back = any(p.pid is None or p.unseen for p in facts.past if facts.sample.at - p.at < 120)
    enough = facts.thresholds.quiet_bytes if not came_back else 64 * 1024
    if facts.undelivered < enough:
        return None
    eta = catch_up_seconds(facts)
    when = f", done in {duration(eta)}" if eta is not None else ""
    return WatchFinding(
        VerdictKey.CATCHING_UP,
        urgency(facts, Severity.OK),
        f"the connector works through a backlog of {size(facts.undelivered)} of WAL{when}",
        "",
        {"drain_rate": facts.drain_rate, "wal_rate": facts.wal_rate},
    )


def catch_up_seconds(facts: Facts) -> float | None:
    """Return when the consumer will be at the head. None: it is not gaining."""
    if facts.undelivered is None or facts.drain_rate is None:
        return None
    gain = facts.drain_rate - (facts.wal_rate or 0.0)
    return facts.undelivered / gain if gain > 0 else None
