"""Fabrics as data: a topology file, the switches, links and addresses that follow from it.

Leaf-spine throughout. Every NIC gets a /24 on its leaf (`10.LEAF.PORT.1`, gateway `.254`), every leaf-spine link a /30
of 172.16.0.0/12, every host a management address in 10.255.0.0/24. Nothing here touches a system.
"""

from enum import StrEnum
from pathlib import Path

import msgspec
import yaml

from c4bench.decoding import from_yaml
from c4bench.errors import UsageError
from c4bench.model.fabric import Host, Nic
from c4bench.units import parse_rate

DIRECTORY = Path(__file__).parent / "topologies"
MANAGEMENT_GATEWAY = "10.255.0.1"
_RATE_MIN, _RATE_MAX = 1e8, 1e11


class Attach(StrEnum):
    """Which leaf a NIC is cabled to.

    `block`: hosts in order, so many to a leaf, all NICs of a host together. `rail`: NIC r of every host on leaf r.
    `plane`: a host's NICs alternate between the two leaves of its block, one plane each.
    """

    BLOCK = "block"
    RAIL = "rail"
    PLANE = "plane"


class Tier(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many switches of a kind."""

    count: int


class HostGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many hosts, with how many NICs each, cabled how."""

    count: int
    nics: int = 1
    attach: Attach = Attach.BLOCK


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Link rates, written such as `10gbit`."""

    nic: str
    uplink: str


class Topology(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fabric. `withdraw_s` is how long after a leg dies far away a leaf stops sending into it."""

    name: str
    description: str
    leaf: Tier
    spine: Tier
    hosts: HostGroup
    rates: Rates
    withdraw_s: float = 0.2

    @property
    def nic_rate_bps(self) -> float:
        """Line rate of a NIC and of the leaf port it is cabled to, bit/s."""
        return parse_rate(self.rates.nic)

    @property
    def uplink_rate_bps(self) -> float:
        """Line rate of each leaf-spine link, bit/s."""
        return parse_rate(self.rates.uplink)


class Port(msgspec.Struct, frozen=True):
    """A NIC and the leaf port at the other end of its cable."""

    nic: Nic
    leaf: int
    port: int

    @property
    def gateway(self) -> str:
        """The leaf's address on this NIC's subnet."""
        return f"10.{self.leaf}.{self.port}.254"

    @property
    def leaf_interface(self) -> str:
        """The leaf's interface towards the NIC."""
        return f"p{self.port}"


class Uplink(msgspec.Struct, frozen=True):
    """A leaf-spine link with the address at each end."""

    leaf: int
    spine: int
    leaf_address: str
    spine_address: str

    @property
    def leaf_interface(self) -> str:
        """The leaf's interface towards the spine."""
        return f"up{self.spine}"

    @property
    def spine_interface(self) -> str:
        """The spine's interface towards the leaf."""
        return f"down{self.leaf}"


def names() -> list[str]:
    """The topologies that come with the package."""
    return sorted(path.stem for path in DIRECTORY.glob("*.yml"))


def load(name_or_path: str) -> Topology:
    """Read a named topology or a file. Raises UsageError naming file, line and key when it is not a valid one."""
    path = Path(name_or_path) if name_or_path.endswith((".yml", ".yaml")) else DIRECTORY / f"{name_or_path}.yml"
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"unknown topology {name_or_path!r}: one of {', '.join(names())}, or a .yml file") from None
    return parse(text, str(path))


def parse(text: str | bytes, where: str) -> Topology:
    """Parse and check topology YAML; `where` names it in errors."""
    try:
        topology = msgspec.convert(from_yaml(text), Topology)
        problem = _problem(topology)
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: {_yaml_place(error)}: not YAML; check quoting and indentation") from None
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}") from None
    except UsageError as error:
        raise UsageError(f"{where}: rates: {error}") from None
    if problem:
        raise UsageError(f"{where}: {problem}")
    return topology


def _yaml_place(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}" if mark else "somewhere"


def _problem(topology: Topology) -> str:
    """What is wrong with a topology that has the right shape, "" when nothing is."""
    hosts, leaves = topology.hosts, topology.leaf.count
    rates = (topology.nic_rate_bps, topology.uplink_rate_bps)
    rules = {
        "rates: a link carries 100mbit to 100gbit": all(_RATE_MIN <= rate <= _RATE_MAX for rate in rates),
        "hosts.count: 2 to 16 hosts": 2 <= hosts.count <= 16,
        "hosts.nics: 1 to 8 NICs a host": 1 <= hosts.nics <= 8,
        "leaf.count: 1 to 16 leaves": 1 <= leaves <= 16,
        "spine.count: 1 to 32 spines": 1 <= topology.spine.count <= 32,
    }
    broken = [words for words, holds in rules.items() if not holds]
    return broken[0] if broken else _cabling_problem(hosts, leaves)


def _cabling_problem(hosts: HostGroup, leaves: int) -> str:
    match hosts.attach:
        case Attach.RAIL if leaves != hosts.nics:
            return f"leaf.count: attach `rail` needs one leaf for each of the {hosts.nics} NICs"
        case Attach.PLANE if hosts.nics != 2 or leaves % 2 or hosts.count % (leaves // 2):
            return "hosts: attach `plane` needs 2 NICs a host, and hosts that divide among pairs of leaves"
        case Attach.BLOCK if hosts.count % leaves:
            return f"hosts.count: {hosts.count} hosts do not divide among {leaves} leaves"
    return ""


def host_name(index: int) -> str:
    """`h0`, `h1`, ..."""
    return f"h{index}"


def management_address(index: int) -> str:
    """Where host `index` is reached for management."""
    return f"10.255.0.{10 + index}"


def ports(topology: Topology) -> tuple[Port, ...]:
    """Every NIC with its leaf port, hosts in order."""
    used = [0] * topology.leaf.count
    found = []
    for host in range(topology.hosts.count):
        for index in range(topology.hosts.nics):
            leaf = _leaf_of(topology, host, index)
            found.append(_port(topology, host, index, leaf, used[leaf]))
            used[leaf] += 1
    return tuple(found)


def _leaf_of(topology: Topology, host: int, nic: int) -> int:
    count, leaves = topology.hosts.count, topology.leaf.count
    match topology.hosts.attach:
        case Attach.RAIL:
            return nic
        case Attach.PLANE:
            return 2 * (host // (count // (leaves // 2))) + nic
        case Attach.BLOCK:
            return host // (count // leaves)


def _port(topology: Topology, host: int, index: int, leaf: int, port: int) -> Port:
    name = host_name(host)
    nic = Nic(
        host=name,
        index=index,
        device=f"{name}r{index}",
        netdev=f"{name}n{index}",
        address=f"10.{leaf}.{port}.1",
        rate_bps=topology.nic_rate_bps,
        plane=index if topology.hosts.attach is not Attach.BLOCK else 0,
    )
    return Port(nic, leaf, port)


def uplinks(topology: Topology) -> tuple[Uplink, ...]:
    """Every leaf-spine link."""
    spines = topology.spine.count
    return tuple(
        Uplink(leaf, spine, _subnet(leaf * spines + spine, 1), _subnet(leaf * spines + spine, 2))
        for leaf in range(topology.leaf.count)
        for spine in range(spines)
    )


def _subnet(number: int, host: int) -> str:
    return f"172.16.{number // 64}.{4 * (number % 64) + host}"


def hosts(topology: Topology) -> tuple[Host, ...]:
    """The hosts as the rest of the house knows them."""
    cabled = ports(topology)
    return tuple(
        Host(
            name=host_name(index),
            address=management_address(index),
            nics=tuple(port.nic for port in cabled if port.nic.host == host_name(index)),
            disruptive=True,
        )
        for index in range(topology.hosts.count)
    )
