"""Mask the secrets of a connector's configuration in output."""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "***"
_SECRET = re.compile(
    r"password|passphrase|secret|token|credential|jaas\.config|api[._-]?key|ssl\.key(store\.key)?$",
    re.IGNORECASE,
)
_REFERENCES = re.compile(r"(\$\{[A-Za-z0-9_.-]+:(?!-)[^}]*\})+")


def is_secret(key: str) -> bool:
    """Tell whether a property holds a secret, or a reference to one."""
    return _SECRET.search(key) is not None


def holds_reference(value: str) -> bool:
    """Tell whether a value contains a `${provider:...}` reference, which only Connect's workers resolve."""
    return _REFERENCES.search(value) is not None


def is_literal_secret(key: str, value: str) -> bool:
    """Tell whether a property contains a secret itself and not a `${provider:...}` reference to one."""
    return bool(value and _SECRET.search(key) and not _REFERENCES.fullmatch(value))


def shown(key: str, value: str) -> str:
    """Return a property's value for output; `***` for a literal secret."""
    return HIDDEN if is_literal_secret(key, value) else value
