"""Inventories that only Ansible can read (INI, directories, scripts, plugins), through `ansible-inventory`.

It is run as a process, since only Ansible knows its plugins, and since ansible-core is GPL-3 and this package is not.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from c4bench.budget import INVENTORY
from c4bench.decoding import DecodingError, from_json, from_yaml, json_in
from c4bench.errors import UsageError
from c4bench.files import read_bounded
from c4bench.inventory import cabling
from c4bench.inventory.document import Keys, dotted
from c4bench.inventory.fabric import VARIABLE
from c4bench.inventory.groups import ALL, Resolved, Variable

INSTALL = "pip install ansible-core ansible-runner"
_TIMEOUT_S = 120.0
_PLAIN = {".yml", ".yaml", ".json"}
# What a plugin says of a file that it cannot parse. Ansible's error only adds that none could.
_REASON = re.compile(
    r"Failed to parse [^\n]*? with '?\w+'? plugin: (?:Failed to parse inventory: )?(.+?)(?=\n\s*\n|\n\[|\Z)",
    re.DOTALL,
)
_META, _NO_META = "_meta", msgspec.Raw(b"{}")


class _Meta(msgspec.Struct, frozen=True):
    hostvars: dict[str, dict[str, Any]] = {}


class _Group(msgspec.Struct, frozen=True):
    hosts: tuple[str, ...] = ()
    children: tuple[str, ...] = ()


class Listing:
    """The output of `ansible-inventory --list`, and errors about it. Raises UsageError for any other output."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path, self.content = path, content
        try:
            listed = json_in(content, dict[str, msgspec.Raw])
            self.hostvars = from_json(listed.pop(_META, _NO_META), _Meta).hostvars
            self.groups = {name: from_json(group, _Group) for name, group in listed.items()}
        except DecodingError as error:
            raise UsageError(
                f"{path}: ansible-inventory lists no inventory ({error}); is its version supported?"
            ) from None

    def error(self, keys: Keys, problem: str) -> UsageError:
        """The error about the value at `keys`; Ansible does not give file and line."""
        return UsageError(f"{self.path}: {dotted(keys)}: {problem}" if keys else f"{self.path}: {problem}")


def listed(path: Path) -> Listing:
    """Read `path` with Ansible. Raises UsageError with Ansible's own message when it cannot."""
    if not path.exists():
        raise UsageError(f"{path}: no such file; give the path of an Ansible inventory")
    if path.is_file() and (kind := cabling.recognise(read_bounded(path, INVENTORY))):
        raise UsageError(f"{path}: not an inventory, but {kind}; `c4bench topology import` reads it")
    done = _ask(path)
    if done.returncode:
        raise UsageError(f"{path}: Ansible cannot read it: {_complaint(done.stderr)}")
    return Listing(path, done.stdout)


def needs_ansible(path: Path) -> bool:
    """Whether `path` is anything but a plain YAML file, which is read here, with line numbers."""
    return path.is_dir() or (path.is_file() and (path.suffix not in _PLAIN or os.access(path, os.X_OK)))


def resolve(listing: Listing) -> Resolved:
    """Every host's variables and every group's hosts, in Ansible's order."""
    groups = {name: tuple(dict.fromkeys(_members(listing.groups, name))) for name in (ALL, *listing.groups)}
    hosts = {name: _variables(listing, name, listing.hostvars.get(name, {})) for name in groups[ALL]}
    return Resolved(hosts, groups)


def _ask(path: Path) -> "subprocess.CompletedProcess[bytes]":
    beside = Path(sys.executable).with_name("ansible-inventory")
    program = str(beside) if beside.exists() else shutil.which("ansible-inventory")
    if program is None:
        raise UsageError(f"{path}: only Ansible can read this, and ansible-inventory is not installed; run: {INSTALL}")
    # Without this an unreadable source is only a warning and gives an empty inventory.
    strict = {"ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1", "ANSIBLE_NOCOLOR": "1"}
    argv = [program, "--inventory", str(path), "--list"]
    try:
        return subprocess.run(argv, capture_output=True, env=os.environ | strict, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise UsageError(f"{path}: Ansible has not read it in {_TIMEOUT_S:g} s; does a script in it hang?") from None


def _complaint(stderr: bytes) -> str:
    """The reason that the last of Ansible's plugins gives, or else its last error, which may run over several lines."""
    text = stderr.decode(errors="replace")
    reasons = [match[1] for match in _REASON.finditer(text)]
    said = reasons[-1] if reasons else text.rpartition("[ERROR]:")[2] or text.rpartition("ERROR!")[2] or text
    return " ".join(said.split())[:300]


def _members(groups: Mapping[str, _Group], name: str) -> Iterator[str]:
    """The hosts of a group, and of those in it: each group once, in Ansible's order."""
    waiting, seen = [name], set[str]()
    while waiting:
        below = waiting.pop()
        if below in groups and below not in seen:
            seen.add(below)
            yield from groups[below].hosts
            waiting += reversed(groups[below].children)


def _variables(listing: Listing, host: str, own: Mapping[str, Any]) -> dict[str, Variable]:
    variables = {key: Variable(value, (host, key), listing) for key, value in own.items()}
    for name in ("c4", VARIABLE):
        if name in variables and isinstance(variables[name].value, str):
            # INI files have text values only, so a mapping is written as text.
            variables[name] = _parsed(variables[name])
    return variables


def _parsed(variable: Variable) -> Variable:
    try:
        return Variable(from_yaml(variable.value), variable.keys, variable.document)
    except DecodingError as error:
        raise variable.error(f"not valid JSON or YAML: {error}") from None
