"""Check a connector's configuration for mistakes that Connect's own validation does not find.

Pure: takes configuration, versions and the table's columns, returns findings. What the profile renders has
no findings; a configuration written by hand usually has several.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from outbox_connectors import checks_foreign, checks_liveness, checks_router, checks_table, checks_values
from outbox_connectors.config_view import CapturedTable, TableColumn, View
from outbox_connectors.definition import Definition
from outbox_connectors.findings import Finding, Severity
from outbox_connectors.profile import FIXES_COMMIT_OFFSETS, OLDEST, Version

__all__ = ["CapturedTable", "Finding", "Severity", "TableColumn", "check", "releases", "retention", "worst"]

_RULES: Final[tuple[Callable[[View], Iterator[Finding]], ...]] = (
    *checks_values.RULES,
    *checks_liveness.RULES,
    *checks_router.RULES,
)


def check(
    config: Mapping[str, str],
    *,
    debezium: Version | None = None,
    postgres_major: int | None = None,
    table: CapturedTable | None = None,
) -> list[Finding]:
    """Find mistakes in a connector's configuration, the most severe first.

    An unknown version (None) counts as the newest known one, so it causes no finding. Without `table` the
    checks of the live table are left out.
    """
    view = View(config, debezium, postgres_major, table)
    found = [finding for rule in _RULES for finding in rule(view)]
    ours = checks_foreign.follows_contract(view)
    if table is not None:
        rules = checks_table.RULES if ours else checks_table.FOREIGN_RULES
        found += [finding for rule in rules for finding in rule(view, table)]
    if not ours:
        found = [checks_foreign.adapt_remedy(finding) for finding in found]
    found = [finding for finding in found if not _about_a_reference(finding, view)] + list(_references(view))
    order = (Severity.CRITICAL, Severity.WARNING, Severity.OK)
    return sorted(found, key=lambda finding: order.index(finding.severity))


# Findings whose cause does not contain the full name of the property.
_OF_THE_ROUTER: Final = frozenset(
    (
        "contract-columns",
        "contract-headers",
        "missing-column",
        "no-delegate",
        "no-predicate",
        "no-router",
        "op-invalid-behavior",
        "predicate-pattern",
        "route-regex",
    )
)
_OF_MESSAGES: Final = frozenset(("excluded-ticks", "no-heartbeat", "foreign-messages", "bare-heartbeat"))


def _about_a_reference(finding: Finding, view: View) -> bool:
    """Tell whether a finding is about a `${provider:...}` value, which only a Connect worker resolves."""
    for key in view.references:
        if re.search(rf"(?<![\w.]){re.escape(key)}(?![\w-]|\.\w)", finding.cause):
            return True
        if finding.code in _OF_THE_ROUTER and key.startswith(("transforms", "predicates", "value.converter")):
            return True
        if finding.code in _OF_MESSAGES and key.startswith(("message.prefix", "heartbeat")):
            return True
        if finding.code == "topic-creation" and key.startswith("topic.creation.default."):
            return True
    return False


def _references(view: View) -> Iterator[Finding]:
    """Report how many values were not checked, not counting references in secret properties."""
    if count := len(view.references):
        words = "values are references and were" if count > 1 else "value is a reference and was"
        cause = f"{count} {words} not checked"
        yield Finding(
            "references",
            Severity.OK,
            cause,
            "find out on the worker what they stand for",
            "Kafka documentation, ConfigProvider",
        )


def releases(*, debezium: Version | None, postgres_major: int | None) -> list[Finding]:
    """Find problems of the Debezium and PostgreSQL versions, independent of the configuration."""
    found = []
    if debezium is not None and debezium < OLDEST:
        cause = f"Debezium {debezium} is older than {OLDEST}, the oldest that was tried with this profile"
        found.append(
            Finding("old-debezium", Severity.CRITICAL, cause, "upgrade to 3.7 or later", "Debezium releases")
        )
    elif debezium is not None and debezium < FIXES_COMMIT_OFFSETS:
        cause = f"Debezium {debezium} loses rows of interleaved transactions and of COPY at restarts"
        remedy = "upgrade to 3.7 or later; until then keep watch.ticker on and the outbox's row trigger"
        found.append(Finding("old-debezium", Severity.WARNING, cause, remedy, "Debezium dbz#76 and dbz#1554"))
    if postgres_major is not None and postgres_major < 14:
        cause = f"PostgreSQL {postgres_major} is older than 14, the oldest that is tested"
        found.append(
            Finding("old-postgresql", Severity.CRITICAL, cause, "upgrade the server", "PostgreSQL versioning")
        )
    return found


def retention(definition: Definition) -> list[Finding]:
    """Find topics whose retention is not longer than `outbox.keep`.

    A row is pruned only while its record is still in the topic (outbox_pipeline.operations.prune). For a
    topic without its own retention.ms the broker's default applies, which is not checked.
    """
    found = []
    for spec in (definition.kafka.defaults, *definition.kafka.aggregates.values()):
        kept = spec.config.get("retention.ms", "-1")
        keep_ms = round(definition.outbox.keep.total_seconds() * 1000)
        if kept.isdigit() and int(kept) <= keep_ms:
            cause = (
                f"topic {spec.name} keeps records for {kept} ms, which is not longer than outbox.keep "
                f"({keep_ms} ms) keeps rows: a row whose record is gone is never pruned"
            )
            remedy = f"set its retention.ms well above {keep_ms}, or outbox.keep below it"
            found.append(
                Finding("short-retention", Severity.WARNING, cause, remedy, "Kafka topic configuration")
            )
    return found


def worst(findings: list[Finding]) -> Severity:
    """Return the severity of the worst finding; OK if there is none."""
    order = (Severity.OK, Severity.WARNING, Severity.CRITICAL)
    return max((finding.severity for finding in findings), key=order.index, default=Severity.OK)
