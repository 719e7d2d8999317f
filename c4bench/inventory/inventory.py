"""An inventory file as hosts, how to connect to them, and the file's digest."""

import hashlib
import re
import shlex
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from c4bench.decoding import DecodingError, whole_number
from c4bench.errors import CombinedUsageError, UsageError, meant
from c4bench.foreign_text import one_line
from c4bench.inventory import ansible, fabric, facts, groups
from c4bench.inventory.document import Document
from c4bench.inventory.facts import HostFacts
from c4bench.inventory.groups import Resolved, Source, Variable, Variables
from c4bench.model.fabric import Hash, Host
from c4bench.model.graph import FabricGraph

# A host's name or address; a line `key=value` of any settings file is a host to Ansible.
_NAME = re.compile(r"[\w.:%@+~-]+")
_ODD_SHOWN = 3
_CONNECTIONS = {"ssh": "ssh", "smart": "ssh", "paramiko": "ssh", "paramiko_ssh": "ssh", "local": "local"}


class Access(msgspec.Struct, frozen=True):
    """How to run something on a host; `python` is the interpreter there that has c4bench.

    `user` and `key_file` are empty and `port` is 0 where the inventory leaves them to SSH; `connection` is `ssh` or
    `local`.
    """

    address: str
    user: str = ""
    port: int = 0
    key_file: str = ""
    ssh_arguments: tuple[str, ...] = ()
    python: str = facts.DEFAULT_PYTHON
    connection: str = "ssh"
    netns: str = ""
    shared: str = ""


class Inventory(msgspec.Struct, frozen=True):
    """The hosts in the order of the file, and apart from them the members of the group `switches`.

    `groups` are group names to host names; `facts` is every host's and switch's variable `c4`; `digest` is the file's
    SHA-256, or that of Ansible's listing where it is more than one file. `graph` are the stated cables, None for none.
    `replaced`: see `Resolved`.
    """

    path: Path
    hosts: tuple[Host, ...]
    switches: tuple[str, ...]
    access: dict[str, Access]
    groups: dict[str, tuple[str, ...]]
    digest: str
    facts: dict[str, HostFacts] = {}
    graph: FabricGraph | None = None
    replaced: tuple[str, ...] = ()

    @property
    def hash(self) -> Hash | None:
        """What all switches choose paths by, as stated; None where they state nothing, or not the same."""
        stated = {self.facts[switch].hash for switch in self.switches}
        return stated.pop() if len(stated) == 1 else None

    @property
    def requires(self) -> frozenset[str]:
        """The capabilities that some host is meant to have."""
        return frozenset(name for known in self.facts.values() for name in known.requires)


def load(path: Path) -> Inventory:
    """Read an Ansible inventory: one YAML file here, anything else through `ansible-inventory`.

    Raises UsageError: file, line and key where known, the problem, and what to do, in one line; where several hosts
    have something wrong, a line for each.
    """
    source, resolved, content = _read(path)
    if not resolved.hosts:
        raise source.error((), "the inventory has no hosts; add them under all.hosts")
    if odd := [name for name in resolved.hosts if not _NAME.fullmatch(name)]:
        shown = ", ".join(repr(one_line(name, 60)) for name in odd[:_ODD_SHOWN])
        raise source.error((), f"not an inventory: its hosts would be called {shown}; give a list of hosts")
    switches = resolved.groups.get("switches", ())
    hosts, access, known = [], {}, {}
    errors: list[UsageError] = []
    for name, variables in resolved.hosts.items():
        try:
            known[name], nics = facts.read(name, variables.get("c4"))
            access[name] = _access(name, variables, known[name])
        except UsageError as error:
            errors.append(error)
            continue
        if name not in switches:
            of_host = known[name]
            gpus, inside = facts.gpu_nics(of_host), facts.inside_of(of_host)
            hosts.append(Host(name, access[name].address, nics, of_host.disruptive, gpus, inside))
    if errors:
        # A variable of a group is every member's: its error is one error.
        raise CombinedUsageError(map(str, errors))
    if not hosts:
        raise source.error((), "the inventory has switches only; add hosts under all.hosts")
    digest = hashlib.sha256(content).hexdigest()
    graph = fabric.read(resolved, hosts, known, switches)
    return Inventory(path, tuple(hosts), switches, access, resolved.groups, digest, known, graph, resolved.replaced)


def load_unless_lab(hosts: str, lab: str) -> Inventory:
    """The inventory that `--hosts` names, where it could have named the `lab` too. Raises UsageError as `load` does."""
    if not Path(hosts).exists():
        advice = f"; give the path of an Ansible inventory, or {lab} for the embedded lab"
        raise UsageError(f"--hosts {hosts}: no such file{meant(hosts, [lab], advice)}")
    return load(Path(hosts))


def _read(path: Path) -> tuple[Source, Resolved, bytes]:
    if not ansible.needs_ansible(path):
        document = Document(path)
        if not _names_a_plugin(document):
            return document, groups.resolve(document), document.content
    listing = ansible.listed(path)
    return listing, ansible.resolve(listing), listing.content


def _names_a_plugin(document: Document) -> bool:
    """Whether the file configures an inventory plugin (`plugin: aws_ec2`) instead of listing hosts."""
    return isinstance(document.data, dict) and isinstance(document.data.get("plugin"), str)


def _access(host: str, variables: Variables, known: HostFacts) -> Access:
    def text(key: str, default: str = "") -> str:
        variable = variables.get(f"ansible_{key}")
        return default if variable is None else _text(variable)

    key_file = text("ssh_private_key_file")
    return Access(
        address=text("host", host),
        user=text("user"),
        port=_port(variables.get("ansible_port")),
        key_file=str(Path(key_file).expanduser()) if key_file else "",
        ssh_arguments=(
            *_split(variables.get("ansible_ssh_common_args")),
            *_split(variables.get("ansible_ssh_extra_args")),
        ),
        python=known.python,
        netns=known.netns,
        shared=known.shared,
        connection=_connection(variables.get("ansible_connection")),
    )


def _text(variable: Variable) -> str:
    if not isinstance(variable.value, str):
        raise variable.error(f"expected text, got {variable.value!r}; put it in quotes")
    if "{{" in variable.value:
        raise variable.error("templates are not evaluated here; write the value itself")
    return variable.value


def _split(variable: Variable | None) -> list[str]:
    if variable is None:
        return []
    try:
        return shlex.split(_text(variable))
    except ValueError as error:
        raise variable.error(f"{error}; correct the quotes") from None


def _port(variable: Variable | None) -> int:
    if variable is None:
        return 0
    try:
        port = 0 if isinstance(variable.value, bool) else whole_number(str(variable.value))
    except DecodingError:
        port = 0
    if not 0 < port < 65536:
        raise variable.error(f"{one_line(repr(variable.value), 80)} is not a port; write a number from 1 to 65535")
    return port


def _connection(variable: Variable | None) -> str:
    if variable is None:
        return "ssh"
    kind = _CONNECTIONS.get(_text(variable).removeprefix("ansible.builtin."))
    if kind is None:
        raise variable.error(f"{variable.value!r} is not supported; use ssh or local")
    return kind


_SHOWN = 8


def select(inventory: Inventory, pattern: str) -> tuple[Host, ...]:
    """The hosts that `pattern` matches, in the order of the inventory.

    A pattern is a comma list of host names, group names (`all` is one) and globs; `!term` removes hosts, `&term`
    keeps only those. Raises UsageError when a term, or the whole pattern, matches nothing.
    """
    terms = [word.strip() for word in pattern.split(",") if word.strip()]
    plain = [word for word in terms if word[0] not in "!&"] or ["all"]
    chosen = set().union(*(_matches(inventory, word) for word in plain))
    for word in terms:
        if word[0] == "&":
            chosen &= _matches(inventory, word[1:])
        elif word[0] == "!":
            chosen -= _matches(inventory, word[1:])
    hosts = tuple(host for host in inventory.hosts if host.name in chosen)
    if not terms or not hosts:
        raise UsageError(f"{inventory.path}: no host matches {pattern!r}; {_choices(inventory)}")
    return hosts


def _matches(inventory: Inventory, word: str) -> set[str]:
    names = {host.name for host in inventory.hosts if fnmatchcase(host.name, word)}
    known = word in inventory.groups
    for name, members in inventory.groups.items():
        if fnmatchcase(name, word):
            names.update(members)
    if not names and not known:
        raise UsageError(f"{inventory.path}: {word!r} matches no host and no group; {_choices(inventory)}")
    return names


def _choices(inventory: Inventory) -> str:
    names = [host.name for host in inventory.hosts]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"the hosts are {', '.join(names[:_SHOWN])}{more}"
