"""The limits at which a number becomes a finding. With the defaults a healthy pipeline has no finding."""

from __future__ import annotations

from dataclasses import dataclass

from outbox_connectors.definition import WatchSection

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Times in seconds, sizes in bytes."""

    warn_left: float = 4 * 3600.0
    critical_left: float = 3600.0
    # A forecast is critical only where it looks at most this many times as far ahead as it looks back.
    sight: float = 20.0
    # How long delivery may stand still before it is critical rather than a restart.
    stalled_critical: float = 300.0
    # A healthy connector confirms after each offset flush: Connect's default is every 60 s.
    stuck: float = 90.0
    # A silent client is frozen after this, or half of wal_sender_timeout if that is longer.
    frozen: float = 30.0
    # WAL that an idle server writes by itself, and a slot that is at the head for all that matters.
    quiet_bytes: int = 16 * MIB
    pinned: float = 300.0
    pinned_bytes: int = 64 * MIB
    catching_up_bytes: int = 64 * MIB
    idle: float = 300.0
    catalog_xmin_warn: int = 50_000_000
    catalog_xmin_critical: int = 200_000_000
    dead_rows: int = 10_000
    dead_ratio: float = 10.0
    vacuum_recent: float = 600.0
    vacuum_holder: float = 60.0
    unexplained_bytes: int = 1024 * MIB
    slots_share: float = 0.8
    group_lag: int = 1000
    group_lag_seconds: float = 300.0
    group_stopped: float = 120.0
    flapping: int = 3  # changes of the consuming process within the history


def thresholds_of(watch: WatchSection) -> Thresholds:
    """Take over what the definition sets."""
    return Thresholds(
        warn_left=watch.warn_left.total_seconds(), critical_left=watch.critical_left.total_seconds()
    )
