"""Remedies for a connector that follows another contract than ours, and may work correctly as it is.

A remedy that is right for the contract's table can stop a connector that reads another table, or change what
its consumers receive. So each remedy that is not safe for every table is replaced by what to find out first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from outbox_connectors.config_view import View
from outbox_connectors.findings import Finding, Severity
from outbox_connectors.profile import PLACEMENT
from outbox_connectors.record import COLUMNS, Place

_READERS: Final = "nothing to do while the readers of its topics expect this form: a change is one for them"
_KEYS: Final = f"{_READERS}; another key moves an aggregate to another partition"
_OFFSETS: Final = (
    "compare first (outboxctl connectors offsets show): only where the stored offset is not older than the "
    "slot's restart_lsn does a start with {} succeed"
)
_PUBLICATION: Final = (
    "find out whether the publication exists and has the table (psql: \\dRp+): only then "
    "publication.autocreate.mode=disabled is safe"
)
_NAME: Final = "a connector that runs already keeps this name; give only a new one a name of its own"
_HEARTBEAT: Final = (
    "find out first whether the topic that its records go to ({}) exists and the value converter can "
    "write a Struct: the producer waits for a missing topic for ever, with every event behind it"
)
_FAILING: Final = (
    "find out in the worker's log which rows it drops: once this is fail or none, the first such row stops it"
)

# code -> (severity, None: unchanged; what to find out, empty: the remedy stays)
FOREIGN_REMEDIES: Final[dict[str, tuple[Severity | None, str]]] = {
    "contract-columns": (Severity.WARNING, _READERS),
    "contract-headers": (Severity.WARNING, _READERS),
    "placement": (Severity.WARNING, _READERS),
    "key-converter": (Severity.WARNING, _KEYS),
    "header-converter": (Severity.WARNING, _READERS),
    "extended-headers": (Severity.WARNING, _READERS),
    "binary-mode": (Severity.WARNING, _READERS),
    "expand-json": (
        None,
        "find out whether payloads have null members or mixed arrays; without it a JsonConverter puts the "
        "payload into quotes",
    ),
    "no-router": (Severity.WARNING, "find out what routes its rows; it may be a transformation of others"),
    "unlisted-alias": (Severity.WARNING, "find out whether it is meant to work; nothing to do if not"),
    "unknown-router-key": (Severity.WARNING, ""),
    "unwrap-before-router": (None, "find out whether its predicate leaves the outbox out; then it is right"),
    "no-predicate": (
        None,
        "find out whether it captures one table only; else give the router a predicate that matches the "
        "outbox's topic, <topic.prefix>.<schema>.<table>",
    ),
    "predicate-pattern": (
        None,
        "find out which topics the router sees: <topic.prefix>.<schema>.<table>",
    ),
    "op-invalid-behavior": (
        None,
        "find out whether the application updates rows of the table: with fatal the first UPDATE stops it",
    ),
    "route-regex": (None, "find out which types go to which topic: another expression moves them"),
    "plugin-name": (
        Severity.WARNING,
        "keep the plug-in that the slot was made with: SELECT plugin FROM pg_replication_slots",
    ),
    "publication-autocreate": (None, _PUBLICATION),
    "filtered-publication": (None, _PUBLICATION),
    "lsn-flush-mode": (None, _OFFSETS.format("lsn.flush.mode=connector")),
    "offset-mismatch-strategy": (None, _OFFSETS.format("offset.mismatch.strategy=no_validation")),
    "errors-tolerance": (None, _FAILING),
    "event-failures": (None, _FAILING),
    "conversion-failures": (None, _FAILING),
    "guardrail": (None, "count the tables that table.include.list matches: a limit below that stops it"),
    "tombstones-on-delete": (None, "find out whether it captures a table whose topic is compacted"),
    "topic-prefix": (None, "stored offsets are kept under it: find out which prefix they have, and set that"),
    "slot-name": (None, _NAME),
    "publication-name": (None, _NAME),
    "table-include-list": (None, "find out which tables it is to capture, and name them: schema\\.table"),
    "snapshot-mode": (
        None,
        "find out whether an offset is stored (outboxctl connectors offsets show): with one no_data changes "
        "nothing, without one it leaves out the rows that the table holds already",
    ),
    "slot-retry-delay": (
        None,
        "find out how long a failover takes: delay times slot.max.retries covers it",
    ),
    "unlimited-retries": (
        None,
        "nothing to do while somebody watches the slot (outboxctl status); a limit makes the task fail in an "
        "outage that is longer",
    ),
    "skipped-inserts": (None, "find out which table's inserts it is to skip: those of an outbox are events"),
    "topic-creation": (None, "find out whether the brokers create topics (auto.create.topics.enable)"),
    "unchecked-option": (None, "find out what it is for before it is changed"),
    "no-tls": (None, "find out whether the server offers TLS (SHOW ssl) before verify-full is asked for"),
    "bare-heartbeat": (None, _HEARTBEAT.format("<topic.prefix>.message")),
    "heartbeat-query": (None, "find out whether what it writes reaches the connector; nothing to do if so"),
    "heartbeat-query-unused": (None, _HEARTBEAT.format("__debezium-heartbeat.<topic.prefix>")),
    "excluded-ticks": (Severity.WARNING, _HEARTBEAT.format("<topic.prefix>.message")),
    "no-heartbeat": (None, _HEARTBEAT.format("<topic.prefix>.message")),
    "foreign-messages": (None, "find out which prefixes its readers need, and name them"),
    "no-row-trigger": (None, "find out whether anybody writes it with COPY; nothing to do if not"),
}
_SAFE_REMEDY: Final = "write column:header:name"  # right for every table: the task fails otherwise


def follows_contract(view: View) -> bool:
    """Tell whether the table has the contract's columns; without a table, whether the router expects them."""
    if view.table is not None:
        return all(view.table.column(c.name) for c in COLUMNS if c.place is not Place.NOWHERE)
    router = f"transforms.{view.routers[0]}." if view.routers else "transforms.?."
    return (
        view.get(f"{router}table.field.event.key") == "aggregate_id"
        and view.get(f"{router}route.by.field") == "aggregate_type"
        and view.get(f"{router}table.fields.additional.placement") == PLACEMENT
    )


def adapt_remedy(finding: Finding) -> Finding:
    """Replace a remedy that is not safe for every table by what to find out first."""
    if finding.code not in FOREIGN_REMEDIES or finding.remedy == _SAFE_REMEDY:
        return finding
    severity, question = FOREIGN_REMEDIES[finding.code]
    return replace(finding, severity=severity or finding.severity, remedy=question or finding.remedy)
