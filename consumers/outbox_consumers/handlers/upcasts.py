"""How payloads of older versions become those of newer ones, by event type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from outbox_consumers.errors import UsageError

Upcast: TypeAlias = Callable[[Any], Any]


class Upcasts:
    """The upcasts of one application: from each version of a payload to the next."""

    def __init__(self) -> None:
        self._steps: dict[str, dict[int, Upcast]] = {}

    def add(self, event_type: str, from_version: int, function: Upcast) -> None:
        """Register how a payload of one version becomes one of the next. Raises UsageError for two."""
        steps = self._steps.setdefault(event_type, {})
        if from_version in steps:
            raise UsageError(f"two upcasts of {event_type} from version {from_version}")
        steps[from_version] = function

    def of(self, event_type: str) -> Mapping[int, Upcast]:
        """Give the upcasts of an event type by version; those that are added later appear in it."""
        return self._steps.setdefault(event_type, {})
