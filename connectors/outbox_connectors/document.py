"""The definition file as a tree that knows its lines, and typed access to it.

Every access either returns a value or raises DefinitionError with file, line, cause and remedy. A value
that came from a variable is never shown in a message, because nobody knows what was in the variable.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from outbox_connectors.definition import Secret
from outbox_connectors.errors import DefinitionError

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")

_TRUE: Final = ("true", "yes", "on")
_FALSE: Final = ("false", "no", "off")


class Kind(StrEnum):
    """What YAML takes a scalar for."""

    TEXT = "text"
    NUMBER = "a number"
    FLAG = "true or false"
    NOTHING = "empty"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single value. `written` is what the file says, `text` what it means after interpolation."""

    where: str
    kind: Kind
    written: str
    text: str
    interpolated: bool


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    where: str
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Members:
    """A mapping: keys with the place each stands at."""

    where: str
    members: Mapping[str, Node]
    key_where: Mapping[str, str]


Node = Scalar | Items | Members


def nearest(wrong: str, known: Iterable[str]) -> str:
    """Say which known word was probably meant, or which words there are."""
    words = sorted(known)
    close = difflib.get_close_matches(wrong, words, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"known here: {', '.join(words)}"


def _sort(node: Node) -> str:
    match node:
        case Items():
            return "a list"
        case Members():
            return "a mapping"
        case Scalar(kind=kind):
            return str(kind)


class Section:
    """One mapping of the file with the keys it may have."""

    def __init__(self, node: Members, path: str, keys: Sequence[str]) -> None:
        self.where = node.where
        self.path = path
        self._node = node
        for key in node.members:
            if key not in keys:
                raise DefinitionError(
                    f"unknown key {self._name(key)}",
                    where=node.key_where[key],
                    remedy=nearest(key, keys),
                )

    def _name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def _get(self, key: str) -> Node | None:
        node = self._node.members.get(key)
        return None if isinstance(node, Scalar) and node.kind is Kind.NOTHING else node

    def fault(self, key: str, problem: str, remedy: str = "") -> DefinitionError:
        """Make an error about a key of this section, at its line."""
        where = self._node.key_where.get(key, self.where)
        return DefinitionError(f"{self._name(key)} {problem}", where=where, remedy=remedy)

    def _scalar(self, key: str) -> Scalar | None:
        node = self._get(key)
        if node is None or isinstance(node, Scalar):
            return node
        raise self.fault(key, f"must be a single value, not {_sort(node)}")

    def _required(self, key: str) -> DefinitionError:
        return DefinitionError(f"{self._name(key)} is missing", where=self.where, remedy="add it")

    def text(self, key: str, default: str | None = None) -> str:
        """Read a text; without a default the key must be there and not empty."""
        scalar = self._scalar(key)
        if scalar is None:
            if default is None:
                raise self._required(key)
            return default
        value = _text(scalar, self.fault, key)
        if not value and default is None:
            raise self.fault(key, "is empty")
        return value

    def name(self, key: str, check: Callable[[str], str], default: str | None = None) -> str:
        """Read a text that `check` finds nothing wrong with; it returns the remedy otherwise."""
        value = self.text(key, default)
        remedy = check(value)
        if remedy:
            raise self.fault(key, f"is not usable: {self.shown(key, value)}", remedy)
        return value

    def secret(self, key: str) -> Secret:
        """Read a text that must not show up anywhere. Absent: empty."""
        return Secret(self.text(key, ""))

    def shown(self, key: str, value: str) -> str:
        """Quote a value for a message as the file has it, so that no variable's content shows."""
        node = self._get(key)
        return repr(node.written if isinstance(node, Scalar) else value)

    def parsed(self, key: str, parse: Callable[[str], T], default: T, remedy: str) -> T:
        """Read a value with `parse`, which raises ValueError for what it does not understand."""
        scalar = self._scalar(key)
        if scalar is None:
            return default
        try:
            return parse(scalar.text.strip())
        except ValueError:
            problem = f"cannot be understood: {scalar.written!r}"
            raise self.fault(key, problem, remedy) from None

    def integer(self, key: str, default: int, low: int, high: int) -> int:
        """Read a whole number between `low` and `high`."""
        value = self.parsed(key, int, default, "write a whole number")
        if not low <= value <= high:
            raise self.fault(key, f"is out of range: {self.shown(key, str(value))}", f"{low} to {high}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Read true or false."""
        return self.parsed(key, _flag, default, "write true or false")

    def choice(self, key: str, options: type[E], default: E) -> E:
        """Read one of the words of an enumeration."""
        words = ", ".join(options)
        return self.parsed(key, options, default, f"one of {words}")

    def texts(self, key: str) -> tuple[str, ...]:
        """Read a list of non-empty texts. Absent: empty."""
        return tuple(value for value, _ in self._items(key))

    def names(self, key: str, check: Callable[[str], str]) -> tuple[str, ...]:
        """Read a list of texts that `check` finds nothing wrong with."""
        found = []
        for value, scalar in self._items(key):
            remedy = check(value)
            if remedy:
                problem = f"{self._name(key)} has an unusable entry: {scalar.written!r}"
                raise DefinitionError(problem, where=scalar.where, remedy=remedy)
            found.append(value)
        return tuple(found)

    def _items(self, key: str) -> Iterator[tuple[str, Scalar]]:
        node = self._get(key)
        if node is None:
            return
        if not isinstance(node, Items):
            raise self.fault(key, f"must be a list, not {_sort(node)}", "write [a, b]")
        for item in node.items:
            if not isinstance(item, Scalar):
                raise DefinitionError(f"{self._name(key)} holds {_sort(item)}", where=item.where)
            value = _text(item, self.fault, key)
            if not value:
                raise DefinitionError(f"{self._name(key)} has an empty entry", where=item.where)
            yield value, item

    def section(self, key: str, keys: Sequence[str], *, required: bool = False) -> Section:
        """Open a mapping inside this one. Absent: an empty one, unless it is required."""
        node = self._get(key)
        if node is None:
            if required:
                raise self._required(key)
            node = Members(self._node.key_where.get(key, self.where), {}, {})
        return self._opened(key, node, keys)

    def sections(self, key: str, keys: Sequence[str]) -> Mapping[str, Section]:
        """Open a mapping whose members are mappings with the same keys and names of the user's."""
        outer = self._members(key)
        found = {}
        for name, node in outer.members.items():
            empty = isinstance(node, Scalar) and node.kind is Kind.NOTHING
            inner = Members(outer.key_where[name], {}, {}) if empty else node
            found[name] = self._opened(f"{key}.{name}", inner, keys)
        return found

    def _opened(self, key: str, node: Node, keys: Sequence[str]) -> Section:
        if not isinstance(node, Members):
            raise DefinitionError(f"{self._name(key)} must be a mapping, not {_sort(node)}", where=node.where)
        return Section(node, self._name(key), keys)

    def _members(self, key: str) -> Members:
        node = self._get(key)
        if node is None:
            return Members(self.where, {}, {})
        if not isinstance(node, Members):
            raise self.fault(key, f"must be a mapping, not {_sort(node)}")
        return node

    def key_fault(self, key: str, member: str, problem: str, remedy: str = "") -> DefinitionError:
        """Make an error about a member of a mapping of this section, at its line."""
        where = self._members(key).key_where.get(member, self.where)
        return DefinitionError(f"{self._name(key)}.{member} {problem}", where=where, remedy=remedy)

    def properties(self, key: str) -> dict[str, str]:
        """Read a mapping of property names, which are not ours, to single values."""
        found = {}
        for name, node in self._members(key).members.items():
            if not isinstance(node, Scalar) or node.kind is Kind.NOTHING:
                problem = f"must be a single value, not {_sort(node)}"
                raise self.key_fault(key, name, problem, "write '' for an empty one")
            found[name] = str(_flag(node.text)).lower() if node.kind is Kind.FLAG else node.text
        return found


def _text(scalar: Scalar, fault: Callable[[str, str, str], DefinitionError], key: str) -> str:
    if scalar.kind in (Kind.NUMBER, Kind.FLAG) and not scalar.interpolated:
        raise fault(key, f"must be text, YAML takes it for {scalar.kind}", "put it in quotes")
    return scalar.text


def _flag(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(text)
