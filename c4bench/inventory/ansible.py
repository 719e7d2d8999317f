"""Inventories that only Ansible can read: INI, directories, scripts, plugins. `ansible-inventory` is asked for them.

As a process, since ansible-core is GPL-3 and this package is not; and since only Ansible knows its plugins.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from c4bench.errors import UsageError
from c4bench.inventory.document import Keys, dotted
from c4bench.inventory.groups import ALL, Resolved, Variable

_TIMEOUT_S = 120.0
_PLAIN = {".yml", ".yaml", ".json"}
_META = "_meta"


class Listing:
    """What `ansible-inventory --list` says of an inventory, and the words for what is wrong in it."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path, self.content = path, content
        self.data: dict[str, Any] = json.loads(content)

    def error(self, keys: Keys, problem: str) -> UsageError:
        """The error to raise about what stands under `keys`; Ansible does not tell the file and the line."""
        return UsageError(f"{self.path}: {dotted(keys)}: {problem}" if keys else f"{self.path}: {problem}")


def listed(path: Path) -> Listing:
    """Have Ansible read `path`. Raises UsageError with Ansible's own word when it cannot."""
    if not path.exists():
        raise UsageError(f"{path}: no such file; give the path of an Ansible inventory")
    done = _ask(path)
    if done.returncode:
        raise UsageError(f"{path}: Ansible cannot read it: {_complaint(done.stderr)}")
    return Listing(path, done.stdout)


def needs_ansible(path: Path) -> bool:
    """Whether `path` is more than the one YAML file that is read here, with lines to point at."""
    return path.is_dir() or (path.is_file() and (path.suffix not in _PLAIN or os.access(path, os.X_OK)))


def resolve(listing: Listing) -> Resolved:
    """Every host's variables and every group's hosts, in Ansible's order."""
    known: Mapping[str, Mapping[str, Any]] = listing.data.get(_META, {}).get("hostvars", {})
    groups = {name: tuple(dict.fromkeys(_members(listing.data, name))) for name in (ALL, *listing.data)}
    groups.pop(_META, None)
    hosts = {name: _variables(listing, name, known.get(name, {})) for name in groups[ALL]}
    return Resolved(hosts, groups)


def _ask(path: Path) -> "subprocess.CompletedProcess[bytes]":
    beside = Path(sys.executable).with_name("ansible-inventory")
    program = str(beside) if beside.exists() else shutil.which("ansible-inventory")
    if program is None:
        raise UsageError(f"{path}: only Ansible can read this, and ansible-inventory is not here; install ansible-core")
    # Without this a source that cannot be read is a warning, and an inventory without hosts.
    strict = {"ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1", "ANSIBLE_NOCOLOR": "1"}
    argv = [program, "--inventory", str(path), "--list"]
    try:
        return subprocess.run(argv, capture_output=True, env=os.environ | strict, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise UsageError(f"{path}: Ansible has not read it in {_TIMEOUT_S:g} s; does a script in it hang?") from None


def _complaint(stderr: bytes) -> str:
    """Ansible's last error, which may run over several lines."""
    text = stderr.decode(errors="replace")
    return " ".join((text.rpartition("[ERROR]:")[2] or text.rpartition("ERROR!")[2] or text).split())[:300]


def _members(data: Mapping[str, Any], name: str) -> Iterator[str]:
    group = data.get(name, {})
    yield from group.get("hosts", ())
    for child in group.get("children", ()):
        yield from _members(data, child)


def _variables(listing: Listing, host: str, own: Mapping[str, Any]) -> dict[str, Variable]:
    found = {key: Variable(value, (host, key), listing) for key, value in own.items()}
    if "c4" in found and isinstance(found["c4"].value, str):
        # An INI file knows text only: there a mapping is written as one.
        found["c4"] = _parsed(found["c4"])
    return found


def _parsed(variable: Variable) -> Variable:
    try:
        return Variable(yaml.safe_load(variable.value), variable.keys, variable.document)
    except yaml.YAMLError as error:
        raise variable.error(f"not valid JSON or YAML: {' '.join(str(error).split())}") from None
