"""Groups and hosts of a YAML inventory, with the variables each host inherits, as Ansible resolves them.

Precedence (Ansible's "how variables are merged"): `all`, then groups by depth, then by name, then the host's own; a
variable replaces the inherited one whole.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from c4bench.inventory.document import Document

ALL = "all"
Keys = tuple[str | int, ...]
_PARTS = ("hosts", "children", "vars")
_RANGE = re.compile(r"\[(\d+|[A-Za-z]):(\d+|[A-Za-z])(?::(\d+))?\]")


class Variable(msgspec.Struct, frozen=True):
    """A value, and where it stands in the document."""

    value: Any
    keys: Keys


Variables = dict[str, Variable]


class _Group(msgspec.Struct):
    variables: Variables = {}
    hosts: dict[str, None] = {}  # ordered, each once
    parents: dict[str, None] = {}


class Resolved(msgspec.Struct, frozen=True):
    """Every host's variables in the order of the file, and every group's hosts."""

    hosts: dict[str, Variables]
    groups: dict[str, tuple[str, ...]]


def resolve(document: Document) -> Resolved:
    """Read the whole document. Raises UsageError with file, line and key."""
    reader = _Reader(document)
    reader.read_group_table(document.data, (), parent=None)
    return reader.resolved()


class _Reader:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._groups: dict[str, _Group] = {ALL: _Group()}
        self._own: dict[str, Variables] = {}

    def read_group_table(self, table: object, keys: Keys, parent: str | None) -> None:
        for name, body in self._mapping(table, keys).items():
            self._read_group(name, body, (*keys, name), parent)

    def _read_group(self, name: str, body: object, keys: Keys, parent: str | None) -> None:
        group = self._groups.setdefault(name, _Group())
        if parent is not None:
            group.parents[parent] = None
        if name in self._ancestors(name):
            raise self._document.error(keys, "a group inside itself; take it out of one of the two")
        parts = self._mapping(body, keys)
        for part in parts:
            if part not in _PARTS:
                raise self._document.error((*keys, part), f"a group has only {', '.join(_PARTS)}; rename or move this")
        for key, value in self._mapping(parts.get("vars"), (*keys, "vars")).items():
            group.variables[key] = Variable(value, (*keys, "vars", key))
        self._read_hosts(group, parts.get("hosts"), (*keys, "hosts"))
        self.read_group_table(parts.get("children"), (*keys, "children"), name)

    def _read_hosts(self, group: _Group, table: object, keys: Keys) -> None:
        for pattern, body in self._mapping(table, keys).items():
            own = {
                key: Variable(value, (*keys, pattern, key))
                for key, value in self._mapping(body, (*keys, pattern)).items()
            }
            for host in expand(pattern):
                group.hosts[host] = None
                self._own.setdefault(host, {}).update(own)

    def _mapping(self, value: object, keys: Keys) -> Mapping[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._document.error(
                keys, f"expected a mapping, got a {type(value).__name__}; write `name:` lines, one for each entry"
            )
        return {str(key): below for key, below in value.items()}

    def _ancestors(self, name: str) -> set[str]:
        found: set[str] = set()
        waiting = [*self._groups[name].parents]
        while waiting:
            parent = waiting.pop()
            if parent not in found:
                found.add(parent)
                waiting += self._groups[parent].parents
        return found

    def _depth(self, name: str) -> int:
        if name == ALL:
            return 0
        return 1 + max((self._depth(parent) for parent in self._groups[name].parents), default=0)

    def resolved(self) -> Resolved:
        above = {name: {name, ALL} | self._ancestors(name) for name in self._groups}
        order = sorted(self._groups, key=lambda name: (self._depth(name), name))
        member_of: dict[str, set[str]] = {host: set() for host in self._own}
        for name, group in self._groups.items():
            for host in group.hosts:
                member_of[host] |= above[name]
        hosts = {}
        for host, own in self._own.items():
            inherited = [self._groups[name].variables for name in order if name in member_of[host]]
            hosts[host] = {key: variable for layer in (*inherited, own) for key, variable in layer.items()}
        groups = {name: tuple(host for host in hosts if name in member_of[host]) for name in order}
        return Resolved(hosts, groups)


def expand(pattern: str) -> Iterator[str]:
    """`node[01:03]` -> node01, node02, node03; letters and a step (`[a:e:2]`) likewise, as Ansible does."""
    match = _RANGE.search(pattern)
    if match is None:
        yield pattern
        return
    head, tail = pattern[: match.start()], pattern[match.end() :]
    for middle in _range(match[1], match[2], int(match[3] or 1)):
        yield from expand(head + middle + tail)


def _range(first: str, last: str, step: int) -> list[str]:
    if first.isdigit():
        return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1, step)]
    return [chr(code) for code in range(ord(first), ord(last) + 1, step)]
