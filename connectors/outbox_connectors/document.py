"""The definition file as a tree of nodes with line numbers, and typed access to it.

Types and defaults of the keys come from the table in `keys`.

Every access either returns a value or raises DefinitionError with file, line, cause and remedy. A message
never shows a value that came from an environment variable, because that may be a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from outbox_connectors.definition import Secret
from outbox_connectors.errors import DefinitionError
from outbox_connectors.keys import SECTIONS, Key
from outbox_connectors.nearest_word import nearest

T = TypeVar("T")

_TRUE: Final = ("true", "yes", "on")
_FALSE: Final = ("false", "no", "off")


class Kind(StrEnum):
    """The type that YAML resolves a scalar to."""

    TEXT = "text"
    NUMBER = "a number"
    FLAG = "true or false"
    NOTHING = "empty"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single value. `written` is the text in the file, `text` the same after interpolation."""

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
    """A mapping; `key_where` has file and line of each key."""

    where: str
    members: Mapping[str, Node]
    key_where: Mapping[str, str]


Node = Scalar | Items | Members


def _kind_of(node: Node) -> str:
    match node:
        case Items():
            return "a list"
        case Members():
            return "a mapping"
        case Scalar(kind=kind):
            return str(kind)


class Section:
    """One mapping of the file. `keys` is its path in the table of keys if that differs from `path`."""

    def __init__(self, node: Members, path: str, keys: str | None = None) -> None:
        self.where = node.where
        self.path = path
        self._node = node
        self._keys: Mapping[str, Key] = SECTIONS[path if keys is None else keys]
        for key in node.members:
            if key not in self._keys:
                raise DefinitionError(
                    f"unknown key {self._name(key)}",
                    where=node.key_where[key],
                    remedy=nearest(key, self._keys),
                )

    def _name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def _get(self, key: str) -> Node | None:
        node = self._node.members.get(key)
        return None if isinstance(node, Scalar) and node.kind is Kind.NOTHING else node

    def fault(self, key: str, problem: str, remedy: str = "") -> DefinitionError:
        """Build an error about a key of this section, with the key's line."""
        where = self._node.key_where.get(key, self.where)
        return DefinitionError(f"{self._name(key)} {problem}", where=where, remedy=remedy)

    def _scalar(self, key: str) -> Scalar | None:
        node = self._get(key)
        if node is None or isinstance(node, Scalar):
            return node
        raise self.fault(key, f"must be a single value, not {_kind_of(node)}")

    def _required(self, key: str) -> DefinitionError:
        return DefinitionError(f"{self._name(key)} is missing", where=self.where, remedy="add it")

    def text(self, key: str, *, pipeline: str = "", required: bool = True) -> str:
        """Read a text and check it against the key's type.

        `pipeline` replaces `<pipeline>` in the default. A key without a default must be present and not
        empty, unless `required` is false.
        """
        row, scalar = self._keys[key], self._scalar(key)
        default = "" if row.default is None and not required else row.default
        if scalar is None:
            if default is None:
                raise self._required(key)
            value = default.replace("<pipeline>", pipeline)
        else:
            value = _text(scalar, self.fault, key)
            if not value and default is None:
                raise self.fault(key, "is empty")
        remedy = row.type.check(value)
        if remedy:
            raise self.fault(key, f"is not usable: {self.shown(key, value)}", remedy)
        return value

    def secret(self, key: str) -> Secret:
        """Read a text as a Secret. Absent: an empty one."""
        return Secret(self.text(key))

    def shown(self, key: str, value: str) -> str:
        """Quote a value for a message as written in the file, without the content of variables."""
        node = self._get(key)
        return repr(node.written if isinstance(node, Scalar) else value)

    def parsed(self, key: str, parse: Callable[[str], T]) -> T:
        """Read a value with `parse`, whose ValueError becomes a DefinitionError."""
        row, scalar = self._keys[key], self._scalar(key)
        if scalar is None:
            return parse(row.default or "")
        try:
            return parse(scalar.text.strip())
        except ValueError:
            problem = f"cannot be understood: {scalar.written!r}"
            raise self.fault(key, problem, row.type.remedy) from None

    def integer(self, key: str, default: int | None = None) -> int:
        """Read a whole number within the bounds of its type. `default` replaces the table's."""
        if default is not None and self._scalar(key) is None:
            return default
        value, bounds = self.parsed(key, int), self._keys[key].type
        if not bounds.low <= value <= bounds.high:
            problem = f"is out of range: {self.shown(key, str(value))}"
            raise self.fault(key, problem, f"{bounds.low} to {bounds.high}")
        return value

    def flag(self, key: str) -> bool:
        """Read true or false."""
        return self.parsed(key, _flag)

    def texts(self, key: str) -> tuple[str, ...]:
        """Read a list of non-empty texts and check each against the key's type. Absent: empty."""
        found = []
        for value, scalar in self._items(key):
            remedy = self._keys[key].type.check(value)
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
            raise self.fault(key, f"must be a list, not {_kind_of(node)}", "write [a, b]")
        for item in node.items:
            if not isinstance(item, Scalar):
                raise DefinitionError(f"{self._name(key)} holds {_kind_of(item)}", where=item.where)
            value = _text(item, self.fault, key)
            if not value:
                raise DefinitionError(f"{self._name(key)} has an empty entry", where=item.where)
            yield value, item

    def section(self, key: str) -> Section:
        """Return a mapping inside this one. Absent: an empty one, unless the key is required."""
        node = self._get(key)
        if node is None:
            if self._keys[key].default is None:
                raise self._required(key)
            node = Members(self._node.key_where.get(key, self.where), {}, {})
        return self._opened(key, node)

    def sections(self, key: str) -> Mapping[str, Section]:
        """Return a mapping whose members have names chosen by the user and all take the same keys."""
        outer = self._members(key)
        found = {}
        for name, node in outer.members.items():
            empty = isinstance(node, Scalar) and node.kind is Kind.NOTHING
            inner = Members(outer.key_where[name], {}, {}) if empty else node
            found[name] = self._opened(f"{key}.{name}", inner, f"{self._name(key)}.*")
        return found

    def _opened(self, key: str, node: Node, keys: str | None = None) -> Section:
        if not isinstance(node, Members):
            raise DefinitionError(
                f"{self._name(key)} must be a mapping, not {_kind_of(node)}", where=node.where
            )
        return Section(node, self._name(key), keys)

    def _members(self, key: str) -> Members:
        node = self._get(key)
        if node is None:
            return Members(self.where, {}, {})
        if not isinstance(node, Members):
            raise self.fault(key, f"must be a mapping, not {_kind_of(node)}")
        return node

    def key_fault(self, key: str, member: str, problem: str, remedy: str = "") -> DefinitionError:
        """Build an error about a member of a mapping of this section, with the member's line."""
        where = self._members(key).key_where.get(member, self.where)
        return DefinitionError(f"{self._name(key)}.{member} {problem}", where=where, remedy=remedy)

    def properties(self, key: str) -> dict[str, str]:
        """Read a mapping of property names of another system (Kafka, Connect) to single values."""
        found = {}
        for name, node in self._members(key).members.items():
            if not isinstance(node, Scalar) or node.kind is Kind.NOTHING:
                problem = f"must be a single value, not {_kind_of(node)}"
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
