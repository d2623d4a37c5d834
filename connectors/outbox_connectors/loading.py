"""Read a definition file into a `Definition`, or raise a one-line error that says what to change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from outbox_connectors import sections
from outbox_connectors.definition import Definition
from outbox_connectors.document import Items, Kind, Members, Node, Scalar
from outbox_connectors.errors import DefinitionError
from outbox_connectors.interpolation import BrokenReference, MissingVariable, interpolate

MAX_FILE_BYTES: Final = 1_000_000

_KINDS: Final = {
    "tag:yaml.org,2002:str": Kind.TEXT,
    "tag:yaml.org,2002:int": Kind.NUMBER,
    "tag:yaml.org,2002:float": Kind.NUMBER,
    "tag:yaml.org,2002:bool": Kind.FLAG,
    "tag:yaml.org,2002:null": Kind.NOTHING,
    "tag:yaml.org,2002:timestamp": Kind.TEXT,
    "tag:yaml.org,2002:value": Kind.TEXT,
}
_COLLECTIONS: Final = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_MERGE: Final = "tag:yaml.org,2002:merge"


def load(path: Path, environ: Mapping[str, str]) -> Definition:
    """Read the definition file at `path`, with `${NAME}` taken from `environ`.

    Raises DefinitionError: one line with file, line, cause and remedy.
    """
    where = str(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        remedy = "name another with -f FILE or $OUTBOX_FILE"
        raise DefinitionError("no such file", where=where, remedy=remedy) from None
    except IsADirectoryError:
        raise DefinitionError("is a directory", where=where, remedy="name the file in it") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise DefinitionError(f"cannot be read: {reason or 'not a path'}", where=where) from None
    if len(content) > MAX_FILE_BYTES:
        problem = f"is larger than {MAX_FILE_BYTES:,} bytes"
        raise DefinitionError(problem, where=where, remedy="this is not a definition file")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DefinitionError(
            "is not UTF-8 text", where=f"{where}:{line}", remedy="save it as UTF-8"
        ) from None
    return loads(text, source=where, environ=environ)


def loads(text: str, *, source: str, environ: Mapping[str, str]) -> Definition:
    """Read a definition from `text`; `source` names it in messages. Raises DefinitionError."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, source) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise DefinitionError(
            "has a character that YAML does not allow", where=f"{source}:{line}", remedy="remove it"
        ) from None
    except RecursionError:
        raise DefinitionError("is nested too deeply", where=source) from None
    if root is None:
        raise DefinitionError(
            "is empty", where=source, remedy="connectors/README.md shows what belongs in it"
        )
    tree = _Tree(source, environ).node(root)
    if not isinstance(tree, Members):
        raise DefinitionError("must be a mapping", where=tree.where, remedy="begin with `pipeline: name`")
    return sections.definition_of(tree, source)


def _syntax_error(error: yaml.MarkedYAMLError, source: str) -> DefinitionError:
    mark = error.problem_mark or error.context_mark
    where = f"{source}:{mark.line + 1}" if mark else source
    problem = error.problem or "does not parse"
    remedy = "check indentation, colons and quotes"
    if "\\t" in problem:
        problem, remedy = "a tab where YAML wants blanks", "indent with blanks"
    elif "but got '{'" in problem:
        problem, remedy = "a { inside { } or [ ]", "put a ${...} there in quotes"
    elif "cannot start any token" in problem:
        remedy = "put the value in quotes"
    elif any(word in problem for word in ("alias", "anchor", "tag")):
        # PyYAML quotes the word here, and an unquoted password may begin with one of these.
        problem, remedy = "a value begins with *, & or !", "put it in quotes"
    elif isinstance(error, yaml.composer.ComposerError):
        problem, remedy = "a second document begins here", "one pipeline per file"
    return DefinitionError(f"broken YAML: {problem}", where=where, remedy=remedy)


class _Tree:
    """Convert PyYAML's nodes to those of `document`, each only once even if several aliases refer to it."""

    def __init__(self, source: str, environ: Mapping[str, str]) -> None:
        self._source = source
        self._environ = environ
        self._done: dict[int, Node] = {}
        self._open: set[int] = set()

    def _where(self, node: yaml.Node) -> str:
        return f"{self._source}:{node.start_mark.line + 1}"

    def node(self, node: yaml.Node) -> Node:
        if id(node) in self._done:
            return self._done[id(node)]
        if id(node) in self._open:
            raise DefinitionError("an alias points into itself", where=self._where(node))
        self._open.add(id(node))
        made = self._made(node)
        self._open.discard(id(node))
        self._done[id(node)] = made
        return made

    def _made(self, node: yaml.Node) -> Node:
        where = self._where(node)
        if node.tag not in _KINDS and node.tag not in _COLLECTIONS:
            raise DefinitionError("a YAML tag (!) is not used here", where=where, remedy="put it in quotes")
        if isinstance(node, yaml.SequenceNode):
            return Items(where, tuple(self.node(item) for item in node.value))
        if isinstance(node, yaml.MappingNode):
            return self._members(node, where)
        return self._scalar(node, where)

    def _members(self, node: yaml.MappingNode, where: str) -> Members:
        merged: list[Members] = []
        members: dict[str, Node] = {}
        places: dict[str, str] = {}
        for key, value in node.value:
            place = self._where(key)
            if key.tag == _MERGE:
                merged += self._sources(value)
                continue
            if not isinstance(key, yaml.ScalarNode) or not key.value.isprintable():
                raise DefinitionError("a key must be a single word", where=place)
            if key.value in members:
                problem = f"{key.value} is given twice, first on line {places[key.value].rpartition(':')[2]}"
                raise DefinitionError(problem, where=place, remedy="remove one")
            places[key.value] = place
            members[key.value] = self.node(value)
        for source in merged:
            for name in source.members.keys() - members.keys():
                members[name], places[name] = source.members[name], source.key_where[name]
        return Members(where, members, places)

    def _sources(self, value: yaml.Node) -> list[Members]:
        made = self.node(value)
        sources = list(made.items) if isinstance(made, Items) else [made]
        found = [source for source in sources if isinstance(source, Members)]
        if len(found) < len(sources):
            raise DefinitionError("<< merges only mappings", where=made.where)
        return found

    def _scalar(self, node: yaml.Node, where: str) -> Scalar:
        written: str = node.value
        kind = _KINDS[node.tag]
        try:
            text = interpolate(written, self._environ)
        except MissingVariable as missing:
            name = missing.name
            remedy = f"export it, give a default as ${{{name}:-value}}, or write $${{ for a plain ${{"
            raise DefinitionError(f"variable {name} is not set", where=where, remedy=remedy) from None
        except BrokenReference:
            remedy = "write ${NAME}, ${NAME:-default} or ${provider:path:key}; $${ is a plain ${"
            raise DefinitionError("a ${ that is not a reference", where=where, remedy=remedy) from None
        return Scalar(where, kind, written, text, interpolated=text != written)
