"""Refuse to write records beside a connector that writes them in another form.

Whatever publishes without the connector (relay, replay, recover, switch) writes the contract's records. Where
the connector is configured to write others, the same event would have two keys, two partitions, two shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from outbox_connectors.definition import Definition
from outbox_connectors.profile import OLDEST, render
from outbox_connectors.wire_form import deviations
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.errors import Refused

_ANY_MAJOR: Final = 14  # no property that decides the form depends on a version
_REMEDY: Final = "nothing was changed: events of this form can only be published by the connector itself"


def refuse_other_form(definition: Definition, client: ConnectClient | None) -> None:
    """Refuse where the definition's connector, or the registered one, does not write the contract's records.

    `client` None: there is no connector that publishes, so the definition alone is looked at. Raises Refused
    with the property and what it changes, and Unreachable.
    """
    refuse(render(definition, debezium=OLDEST, postgres_major=_ANY_MAJOR), definition, "connect.config")
    live = client.config(definition.connect.connector) if client is not None else None
    if live is not None:
        refuse(live, definition, f"connector {definition.connect.connector}")


def refuse(config: Mapping[str, str], definition: Definition, where: str) -> None:
    """Refuse one configuration that makes other records. Pure. Raises Refused."""
    found = deviations(config, definition)
    if found:
        others = f" (also {', '.join(one.key for one in found[1:])})" if found[1:] else ""
        raise Refused(
            f"the connector's records are not the contract's: {found[0]}{others}", where=where, remedy=_REMEDY
        )
