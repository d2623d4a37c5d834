"""Replace `${NAME}` and `${NAME:-default}`, and leave Kafka's `${provider:...}` alone."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Escape, environment variable, reference to one of Connect's config providers, anything else.
_PARTS = re.compile(
    r"(?P<escape>\$\$\{)"
    r"|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}"
    r"|(?P<provider>\$\{[A-Za-z0-9_.-]+:(?!-)[^}]*\})"
    r"|(?P<broken>\$\{)"
)
_PROVIDER = re.compile(r"\$\{[A-Za-z0-9_.-]+:(?!-)[^}]*\}")


class MissingVariable(KeyError):
    """A variable that has no default and is not set in the environment."""

    @property
    def name(self) -> str:
        """The variable."""
        return str(self.args[0])


class BrokenReference(ValueError):
    """A `${` that is neither a variable nor a reference to a config provider."""


def interpolate(text: str, environ: Mapping[str, str]) -> str:
    """Replace the variables in one value, without interpolating their content again.

    A default replaces an unset or empty variable, as in a shell. `$${` is a literal `${`.
    Raises MissingVariable and BrokenReference.
    """

    def replacement(match: re.Match[str]) -> str:
        if match["escape"]:
            return "${"
        if match["provider"]:
            return match["provider"]
        if match["broken"]:
            raise BrokenReference(text)
        name, default = match["name"], match["default"]
        value = environ.get(name)
        if default is not None:
            return value or default
        if value is None:
            raise MissingVariable(name)
        return value

    return _PARTS.sub(replacement, text)


def refers_to_provider(text: str) -> bool:
    """Tell whether the whole value is one `${provider:...}` reference, so that it contains no secret."""
    return _PROVIDER.fullmatch(text) is not None
