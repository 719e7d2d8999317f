"""Groups and hosts of a YAML inventory, with the variables each host inherits, as Ansible resolves them.

Precedence (Ansible's "Understanding variable precedence"): `all`, then groups by depth, then by name, then the host's
own; for each first the inventory, then the files in group_vars and host_vars beside it. A variable replaces the
inherited one as a whole.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from c4bench import budget
from c4bench.decoding import whole_number
from c4bench.errors import C4Error, UsageError
from c4bench.inventory.document import Document

ALL = "all"
Keys = tuple[str | int, ...]
_YAML = {"", ".yml", ".yaml"}
_VAULT = b"$ANSIBLE_VAULT"
_PARTS = ("hosts", "children", "vars")
_RANGE = re.compile(r"\[([0-9]+|[A-Za-z]):([0-9]+|[A-Za-z])(?::([0-9]+))?\]")


class Source(Protocol):
    """The source of variables."""

    def error(self, keys: Keys, problem: str) -> UsageError:
        """The error about the value at `keys`."""


class Variable(msgspec.Struct, frozen=True):
    """A value and its location."""

    value: Any
    keys: Keys
    document: Source

    def error(self, problem: str, below: Keys = ()) -> UsageError:
        """The error about it, or about the value `below` it."""
        return self.document.error((*self.keys, *below), problem)


Variables = dict[str, Variable]


class _Group(msgspec.Struct):
    variables: Variables = {}
    hosts: dict[str, None] = {}  # ordered, each once
    parents: dict[str, None] = {}


class Resolved(msgspec.Struct, frozen=True):
    """Every host's variables in the order of the file, and every group's hosts.

    `replaced` has a line for each mapping in the inventory that a file in host_vars replaces by another one.
    """

    hosts: dict[str, Variables]
    groups: dict[str, tuple[str, ...]]
    replaced: tuple[str, ...] = ()


def resolve(document: Document) -> Resolved:
    """Read the whole document. Raises UsageError with file, line and key."""
    reader = _Reader(document)
    reader.read_group_table(document.data, (), parent=None)
    return reader.resolved()


class _Reader:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._groups: dict[str, _Group] = {ALL: _Group()}
        self._host_variables: dict[str, Variables] = {}
        self._account = budget.Account("the inventory's hosts", budget.INVENTORY)

    def read_group_table(self, table: object, keys: Keys, parent: str | None) -> None:
        for name, body in self._document.mapping(table, keys).items():
            self._read_group(name, body, (*keys, name), parent)

    def _read_group(self, name: str, body: object, keys: Keys, parent: str | None) -> None:
        group = self._groups.setdefault(name, _Group())
        if parent is not None:
            group.parents[parent] = None
        if name in self._ancestors(name):
            raise self._document.error(keys, "a group inside itself; remove it from one of the two")
        parts = self._document.mapping(body, keys)
        for part in parts:
            if part not in _PARTS:
                raise self._document.error((*keys, part), f"a group has only {', '.join(_PARTS)}; rename or move this")
        for key, value in self._document.mapping(parts.get("vars"), (*keys, "vars")).items():
            group.variables[key] = Variable(value, (*keys, "vars", key), self._document)
        self._read_hosts(group, parts.get("hosts"), (*keys, "hosts"))
        self.read_group_table(parts.get("children"), (*keys, "children"), name)

    def _read_hosts(self, group: _Group, table: object, keys: Keys) -> None:
        for pattern, body in self._document.mapping(table, keys).items():
            own = {
                key: Variable(value, (*keys, pattern, key), self._document)
                for key, value in self._document.mapping(body, (*keys, pattern)).items()
            }
            if "/" in pattern:
                raise self._document.error((*keys, pattern), "a host's name has no slash; correct it")
            try:
                hosts = list(expand(pattern))
                new = len(set(hosts) - self._host_variables.keys())
                self._account.spend(names=new, records=len(hosts))
            except C4Error as error:
                raise self._document.error((*keys, pattern), str(error)) from None
            for host in hosts:
                group.hosts[host] = None
                self._host_variables.setdefault(host, {}).update(own)

    def _ancestors(self, name: str) -> set[str]:
        ancestors: set[str] = set()
        waiting = [*self._groups[name].parents]
        while waiting:
            parent = waiting.pop()
            if parent not in ancestors:
                ancestors.add(parent)
                waiting += self._groups[parent].parents
        return ancestors

    def _depths(self, above: Mapping[str, Collection[str]]) -> dict[str, int]:
        """How deep each group lies below `all`, by the longest way; `above` are its ancestors."""
        depths: dict[str, int] = {}
        for name in sorted(self._groups, key=lambda name: len(above[name])):
            parents = (depths[parent] for parent in self._groups[name].parents)
            depths[name] = 0 if name == ALL else 1 + max(parents, default=0)
        return depths

    def resolved(self) -> Resolved:
        above = {name: {name, ALL} | self._ancestors(name) for name in self._groups}
        depths = self._depths(above)
        order = sorted(self._groups, key=lambda name: (depths[name], name))
        files = {name: read_beside(self._document.path, "group_vars", name) for name in order}
        member_of: dict[str, set[str]] = {host: set() for host in self._host_variables}
        for name, group in self._groups.items():
            for host in group.hosts:
                member_of[host] |= above[name]
        hosts: dict[str, Variables] = {}
        replaced: list[str] = []
        for host, own in self._host_variables.items():
            of = [name for name in order if name in member_of[host]]
            inherited = [self._groups[name].variables for name in of]
            beside = [files[name] for name in of]
            files_of_host = read_beside(self._document.path, "host_vars", host)
            replaced += self._replaced(host, own, files_of_host)
            layers = (*inherited, *beside, own, files_of_host)
            hosts[host] = {key: variable for layer in layers for key, variable in layer.items()}
        groups = {name: tuple(host for host in hosts if name in member_of[host]) for name in order}
        return Resolved(hosts, groups, tuple(replaced))

    def _replaced(self, host: str, own: Variables, by: Variables) -> Iterator[str]:
        for key in own.keys() & by.keys():
            if isinstance(own[key].value, dict) and own[key].value != by[key].value:
                problem = f"this replaces the whole {key} that {self._document.path} gives {host}; keep one of the two"
                yield str(by[key].error(problem))


def read_beside(inventory: Path, folder: str, name: str) -> Variables:
    """The variables in `group_vars/NAME` or `host_vars/NAME` beside the inventory: a file or a folder of files.

    Vaulted files are skipped: secrets are for Ansible only.
    """
    base = inventory.parent / folder / name
    files = [path for path in (base, Path(f"{base}.yml"), Path(f"{base}.yaml")) if path.is_file()]
    if base.is_dir():
        files += sorted(path for path in base.iterdir() if path.suffix in _YAML)
    documents = [Document(path) for path in files if not path.read_bytes().startswith(_VAULT)]
    return {
        key: Variable(value, (key,), document)
        for document in documents
        for key, value in document.mapping(document.data).items()
    }


def expand(pattern: str) -> Iterator[str]:
    """`node[01:03]` -> node01, node02, node03; letters and a step (`[a:e:2]`) likewise, as Ansible does.

    Raises UsageError for what is no range, and for more hosts than a file may bring.
    """
    ranges = [_Range(*found.groups()) for found in _RANGE.finditer(pattern)]
    if math.prod(one.count for one in ranges) > budget.INVENTORY.names:
        raise UsageError(f"ranges of more than {budget.INVENTORY.names:,} hosts; write shorter ones")
    between = _RANGE.split(pattern)[:: 1 + _RANGE.groups]
    for words in product(*(one.words() for one in ranges)):
        yield between[0] + "".join(word + rest for word, rest in zip(words, between[1:], strict=True))


class _Range:
    """From a number to a number, or from a letter to a letter."""

    def __init__(self, first: str, last: str, step: str | None) -> None:
        self._width = len(first) if first.isdecimal() else 0
        self._first, self._last = (whole_number(end) if end.isdecimal() else ord(end) for end in (first, last))
        self._step = whole_number(step or "1")
        if self._step < 1 or first.isdecimal() != last.isdecimal():
            raise UsageError(
                "a range goes from a number to a number or from a letter to a letter, in steps of 1 or more"
            )
        self.count = max(0, (self._last - self._first) // self._step + 1)

    def words(self) -> list[str]:
        """What stands in its place, as wide as the first number."""
        numbers = range(self._first, self._last + 1, self._step)
        return [str(number).zfill(self._width) if self._width else chr(number) for number in numbers]


Kind = TypeVar("Kind", bound=msgspec.Struct)
# The types of the tables below a variable, by key.
Tables = Mapping[str | int, type[msgspec.Struct]]
_LOCATION = re.compile(r" - at `(?:key in )?\$(.*)`$")
_STEP = re.compile(r"\[(\d+)\]|\.([^.\[]+)")
_UNKNOWN = re.compile(r"unknown field `(.*)`")


def convert(variable: Variable, kind: type[Kind], tables: Tables, who: str = "") -> Kind:
    """The variable's value. Raises UsageError naming file, line and key, and `who` has it."""
    try:
        return msgspec.convert(variable.value, kind)
    except msgspec.ValidationError as error:
        problem, below = _locate(str(error), kind, tables)
        raise variable.error(f"{problem}{who}", below) from None


def split(message: str) -> tuple[str, Keys]:
    """Split a validator's message into the problem and the keys of the value that has it."""
    match = _LOCATION.search(message)
    steps = tuple(name or int(number) for number, name in _STEP.findall(match[1] if match else ""))
    problem = _LOCATION.sub("", message)
    unknown = _UNKNOWN.search(problem)
    return problem[:1].lower() + problem[1:], (*steps, unknown[1]) if unknown else steps


def _locate(message: str, kind: type[msgspec.Struct], tables: Tables) -> tuple[str, Keys]:
    """Split the validator's message into the problem and the keys below the variable."""
    problem, steps = split(message)
    if _UNKNOWN.search(problem):
        known = tables.get(next((step for step in steps if step in tables), ""), kind).__struct_fields__
        return f"unknown key; there are {', '.join(known)}", steps
    return problem, steps
