"""What Connect's own validation lets pass, and our checks do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import requests

from conformance.roads import definition
from fix_stack import Database, Stack
from outbox_connectors.checks import check
from outbox_connectors.profile import Version, render
from outbox_pipeline.connect.client import ConnectClient

pytestmark = pytest.mark.stack

V370 = Version.parse("3.7.0.Final")
ROUTER = "transforms.outbox."
ABSENT = None
# What other classes than the connector read: producer, converter, and topics by their own names.
UNDECLARED = ("producer.override.", "value.converter.delegate.", "topic.creation.")

# Each was deployed on Debezium 3.7.0.Final: the task fails, nothing arrives, or the option is ignored.
PASSES_VALIDATION: tuple[tuple[str, dict[str, str | None]], ...] = (
    ("plugin-name", {"plugin.name": ABSENT}),
    ("placement", {ROUTER + "table.fields.additional.placement": "event_type:haeder"}),
    ("router-value", {ROUTER + "table.op.invalid.behavior": "fatel"}),
    ("route-regex", {ROUTER + "route.topic.regex": "("}),
    ("route-regex", {ROUTER + "route.topic.replacement": "x.${nobody}"}),
    ("undefined-predicate", {ROUTER + "predicate": "isOutbx"}),
    ("topic-creation", {"topic.creation.default.replication.factor": ABSENT}),
    ("no-router", {"transforms": ABSENT}),
    ("predicate-pattern", {"predicates.isOutbox.pattern": "nothing"}),
    ("unknown-router-key", {ROUTER + "route.topic.replacment": "x"}),
    ("unlisted-alias", {"transforms.outBox.route.by.field": "x"}),
    ("offset-mismatch-strategy", {"offset.mismatch.strategy": "trust_sloot"}),
    ("misspelt-value", {"read.only": "ture"}),
    ("heartbeat-query-unused", {"heartbeat.action.query": "SELECT 1"}),
    ("tasks-max", {"tasks.max": "4"}),
    ("unlimited-retries", {"errors.max.retries": "-5"}),
    ("errors-tolerance", {"errors.tolerance": "all"}),
    ("transaction-metadata", {"provide.transaction.metadata": "true"}),
    ("slot-drop-on-stop", {"slot.drop.on.stop": "true"}),
)


def superuser(definition_config: dict[str, str], stack: Stack) -> dict[str, str]:
    """Log in as the superuser: validation opens a connection, and no role is provisioned here."""
    environ = stack.environ
    login = {"database.user": environ["PGUSER"], "database.password": environ["PGPASSWORD"]}
    return {**definition_config, **login}


def test_validation_passes_what_the_checks_find(
    stack: Stack, new_database: Callable[[Stack], Database], pipeline_name: str
) -> None:
    found = definition(stack, new_database(stack), pipeline_name, "")
    good = superuser(render(found, debezium=V370, postgres_major=18), stack)
    with ConnectClient(found.connect) as client:
        assert client.validate(good) == ()
        for code, change in PASSES_VALIDATION:
            merged = {**good, **change}
            config = {key: value for key, value in merged.items() if value is not None}
            assert client.validate(config) == (), code
            assert code in {finding.code for finding in check(config, debezium=V370)}


@pytest.mark.parametrize("extra", ["", "outbox: {payload: bytea}\nwatch: {ticker: off}\n"])
def test_every_option_we_set_is_one(
    stack: Stack, new_database: Callable[[Stack], Database], pipeline_name: str, extra: str
) -> None:
    """An option that nobody knows is ignored, so a typo of ours would be a protection that is not there."""
    found = definition(stack, new_database(stack), pipeline_name, extra)
    config = superuser(render(found, debezium=V370, postgres_major=18), stack)
    answer = requests.put(
        f"{stack.connect_url}/connector-plugins/{config['connector.class']}/config/validate",
        json={"name": pipeline_name, **config},
        timeout=90,
    )
    known = {option["definition"]["name"] for option in answer.json()["configs"]}
    unknown = {key for key in config if key not in known and not key.startswith(UNDECLARED)}
    assert unknown == {"offset.mismatch.strategy"}  # read by Debezium, but not declared (3.6 and 3.7)
