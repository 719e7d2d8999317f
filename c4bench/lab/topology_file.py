"""Topology files: a fabric as a graph of cables, or as the parameters of one of the usual shapes.

A shape's hosts are cabled to its leaves in blocks, by rail, by plane, or by bonds.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from c4bench.decoding import DecodingError, from_yaml
from c4bench.errors import UsageError, meant
from c4bench.files import read_bounded
from c4bench.foreign_text import file_name
from c4bench.inventory import cabling
from c4bench.inventory.cables import Cable, GraphError, Limits, Problem, delay_of, expand, rate_of
from c4bench.inventory.cables import check as check_graph
from c4bench.inventory.document import Keys, located
from c4bench.inventory.groups import split
from c4bench.lab.topology import (
    AckTimeout,
    EcnMarking,
    FabricOptions,
    FlowControl,
    Nics,
    SwitchRouting,
    Topology,
    build,
    subnet_numbers,
)
from c4bench.model.fabric import FIVE_TUPLE
from c4bench.model.graph import FabricGraph, HostPort, Trunk, by_nic, tiers_of
from c4bench.units import format_rate, format_time


class Attach(StrEnum):
    """Which leaf a NIC is cabled to.

    `block`: hosts in order, so many to a leaf, all NICs of a host together. `rail`: NIC r of every host on leaf r.
    `plane`: a host's NICs alternate between the two leaves of its block, one plane each. `bond`: each NIC is a bond of
    two ports, one on each of the two leaves of its host's block.
    """

    BLOCK = "block"
    RAIL = "rail"
    PLANE = "plane"
    BOND = "bond"


class HostGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many hosts, with how many NICs each, cabled how."""

    count: int
    nics: int = 1
    attach: Attach = Attach.BLOCK


def numbered(kind: str, count: int) -> tuple[str, ...]:
    """`leaf0`, `leaf1` and so on."""
    return tuple(f"{kind}{number}" for number in range(count))


def attach(group: HostGroup, leaves: tuple[str, ...], rate_bps: float) -> tuple[tuple[str, ...], list[HostPort]]:
    """The hosts' names and cables, each at `rate_bps`.

    Raises UsageError for hosts that do not divide among the leaves as asked for.
    """
    if problem := _attachment_problem(group, len(leaves)):
        raise UsageError(problem)
    hosts = numbered("h", group.count)
    ports = [
        HostPort(
            host,
            leaves[leaf],
            rate_bps,
            plane=nic if group.attach in (Attach.RAIL, Attach.PLANE) else 0,
            bond=f"bond{nic}" if group.attach is Attach.BOND else "",
        )
        for number, host in enumerate(hosts)
        for nic in range(group.nics)
        for leaf in _leaves_of(group, len(leaves), number, nic)
    ]
    return hosts, ports


def _attachment_problem(group: HostGroup, leaves: int) -> str:
    divided = leaves % 2 == 0 and group.count % (leaves // 2) == 0
    match group.attach:
        case Attach.RAIL if leaves != group.nics:
            return f"leaf.count: attach `rail` needs one leaf for each of the {group.nics} NICs"
        case Attach.PLANE if group.nics != 2 or not divided:
            return "hosts: attach `plane` needs 2 NICs a host, and hosts that divide among pairs of leaves"
        case Attach.BOND if not divided:
            return f"hosts.count: attach `bond`: {group.count} hosts do not divide among pairs of {leaves} leaves"
        case Attach.BLOCK if group.count % leaves:
            return f"hosts.count: {group.count} hosts do not divide among {leaves} leaves"
    return ""


def _leaves_of(group: HostGroup, leaves: int, host: int, nic: int) -> tuple[int, ...]:
    """The leaves that the ports of a NIC are cabled to."""
    match group.attach:
        case Attach.RAIL:
            return (nic,)
        case Attach.PLANE:
            return (2 * (host // (group.count // (leaves // 2))) + nic,)
        case Attach.BOND:
            first = 2 * (host // (group.count // (leaves // 2)))
            return first, first + 1
        case Attach.BLOCK:
            return (host // (group.count // leaves),)


NICS_AT_MOST = 8
GPUS_AT_MOST = 8
_INSIDE = (10e12, 0.001)  # the highest rate, bit/s, and the longest delay, s
SWITCHES_AT_MOST = 128
_WITHDRAW_MAX_S = 10.0
_ICMP_MAX = 1_000_000
# A queue that marks holds some packets, and no more than all that a port keeps (bytes).
_SHORTEST_QUEUE_BYTES, _LONGEST_QUEUE_BYTES = 10_000, 8 << 20
# Some packets wait at least before a port pauses the other end of its cable, and no more than the port keeps (bytes).
_LEAST_PAUSED_BYTES = 5_000
_WATCHDOG_S = (0.01, 10.0)
# A port drops packets that are larger than its burst (bytes).
_SMALLEST_BURST_BYTES, _LARGEST_BURST_BYTES = 4400, 1 << 20
_SUBNETS_AT_MOST = 254  # a byte of the address
_LIMITS = Limits(
    what="a lab",
    # An interface of a host is its name with up to three letters or digits more, and has at most 15 (IFNAMSIZ).
    name=r"[a-z][a-z0-9-]{0,11}",
    naming="use up to 12 lower-case letters, digits and hyphens",
    hosts=(2, 64),
    nics=NICS_AT_MOST,
    bond_ports=2,  # each leaf has a further address in a NIC's subnet
    switches=SWITCHES_AT_MOST,
    ports=254,  # a byte of the address
    trunks=4096,
    rates=("100mbit", "100gbit"),
    delay_s=1.0,
)


def _check(graph: FabricGraph, options: FabricOptions) -> None:
    """Raises UsageError that names the key and the reason."""
    check_graph(graph, _LIMITS)
    for keys, problem in _problems(graph, options):
        raise GraphError(keys, problem)


def _marking_problems(ecn: EcnMarking) -> Iterator[Problem]:
    if not _SHORTEST_QUEUE_BYTES <= ecn.min_bytes < ecn.max_bytes <= _LONGEST_QUEUE_BYTES:
        bounds = f"{_SHORTEST_QUEUE_BYTES} <= min_bytes < max_bytes <= {_LONGEST_QUEUE_BYTES}"
        yield ("ecn", "min_bytes"), f"{ecn.min_bytes}, with max_bytes {ecn.max_bytes}; give {bounds}"
    if not 0 < ecn.probability <= 1:
        yield ("ecn", "probability"), f"{ecn.probability:g}; give more than 0, at most 1"


def _connectx_problems(graph: FabricGraph, options: FabricOptions) -> Iterator[Problem]:
    if options.nics is Nics.CONNECTX_6 and any(port.bond for port in graph.host_ports):
        yield ("nics",), f"{options.nics}: with bonds a lab's NICs are rxe"
    if options.nics is Nics.RXE and options.ack_timeout is not AckTimeout.CX6:
        yield ("ack_timeout",), f"{options.ack_timeout}: rxe has time-outs of its own; give nics: {Nics.CONNECTX_6}"


def _pausing_problems(pfc: FlowControl) -> Iterator[Problem]:
    if not pfc.priorities:
        yield ("pfc", "priorities"), "none; name one at least, of 0 to 7, or leave pfc out"
    if not _LEAST_PAUSED_BYTES <= pfc.xon_bytes <= pfc.xoff_bytes <= _LONGEST_QUEUE_BYTES:
        bounds = f"{_LEAST_PAUSED_BYTES} <= xon_bytes <= xoff_bytes <= {_LONGEST_QUEUE_BYTES}"
        yield ("pfc", "xoff_bytes"), f"{pfc.xoff_bytes}, with xon_bytes {pfc.xon_bytes}; give {bounds}"
    for key in ("headroom_bytes", "queue_bytes"):
        if not _SHORTEST_QUEUE_BYTES <= (value := getattr(pfc, key)) <= _LONGEST_QUEUE_BYTES:
            yield ("pfc", key), f"{value}; give {_SHORTEST_QUEUE_BYTES} to {_LONGEST_QUEUE_BYTES}"
    least_s, most_s = _WATCHDOG_S
    if pfc.watchdog_s and not least_s <= pfc.watchdog_s <= most_s:
        yield ("pfc", "watchdog_s"), f"{pfc.watchdog_s:g}; give {least_s:g} to {most_s:g} seconds, or 0 for none"


def _gpu_problems(graph: FabricGraph, options: FabricOptions) -> Iterator[Problem]:
    nics = Counter(cables[0].host for cables in by_nic(graph.host_ports))
    for position, nic in enumerate(options.gpus):
        if fewer := [host for host in graph.hosts if nics[host] <= nic]:
            yield ("gpus", position), f"{nic}: host {fewer[0]} has no NIC {nic}; every host has the same GPUs"
    if len(options.gpus) > GPUS_AT_MOST:
        yield ("gpus",), f"{len(options.gpus)} GPUs a host; give up to {GPUS_AT_MOST}"
    if options.inside and not options.gpus:
        yield ("inside",), "joins GPUs, and there are none; give gpus, such as [0, 1]"
    if options.inside:
        fastest_bps, slowest_s = _INSIDE
        try:
            stated = options.inside.parsed()
        except UsageError as error:
            yield ("inside",), str(error)
        else:
            if not 0 < stated.rate_bps <= fastest_bps or stated.delay_s > slowest_s:
                limit = f"{format_rate(fastest_bps)} and {format_time(slowest_s)}"
                yield ("inside",), f"{options.inside.rate}, {options.inside.delay}; give up to {limit}"


def _bgp_problems(graph: FabricGraph, options: FabricOptions) -> Iterator[Problem]:
    if options.spray_dscp or options.hash != FIVE_TUPLE:
        yield ("routing",), f"{options.routing}: with spray_dscp or hash the lab writes the routes; leave one out"
    tiers = tiers_of(graph)
    for cable in graph.trunks:
        if tiers.get(cable.a) == tiers.get(cable.b):
            yield ("routing",), f"{options.routing}: {cable.a} and {cable.b} are equally far from hosts; leave it out"


def _problems(graph: FabricGraph, options: FabricOptions) -> Iterator[Problem]:
    if not 0 <= options.withdraw_s <= _WITHDRAW_MAX_S:
        yield ("withdraw_s",), f"{options.withdraw_s:g}; give 0 to {_WITHDRAW_MAX_S:g} seconds"
    for key in ("ratelimit_ms", "msgs_per_sec", "msgs_burst"):
        if not 0 <= (value := getattr(options.icmp, key)) <= _ICMP_MAX:
            yield ("icmp", key), f"{value}; give 0 to {_ICMP_MAX}"
    if not _SMALLEST_BURST_BYTES <= options.burst_bytes <= _LARGEST_BURST_BYTES:
        yield ("burst_bytes",), f"{options.burst_bytes}; give {_SMALLEST_BURST_BYTES} to {_LARGEST_BURST_BYTES}"
    if options.switch_os and options.hash != FIVE_TUPLE:
        yield ("switch_os",), f"{options.switch_os}: switches with an operating system hash the 5-tuple; leave hash out"
    if options.switch_os and options.spray_dscp:
        yield ("switch_os",), f"{options.switch_os}: switches with an operating system do not spray; leave one out"
    if options.routing is SwitchRouting.BGP:
        yield from _bgp_problems(graph, options)
    yield from _marking_problems(options.ecn) if options.ecn else ()
    if options.spray_dscp and options.hash != FIVE_TUPLE:
        yield ("hash",), f"{options.hash}, with spray_dscp {options.spray_dscp}; leave one of the two out"
    yield from _pausing_problems(options.pfc) if options.pfc else ()
    yield from _connectx_problems(graph, options)
    yield from _gpu_problems(graph, options)
    if (subnets := len(subnet_numbers(graph))) > _SUBNETS_AT_MOST:
        yield ("links",), f"{subnets} edge switches and pairs of them with bonds; give at most {_SUBNETS_AT_MOST}"
    for position in (port.position for port in graph.host_ports if port.nic >= 0):
        yield ("links", position, "between"), "a lab numbers NICs itself; name the host without a NIC"


DIRECTORY = Path(__file__).parent / "topologies"


class GraphForm(FabricOptions, frozen=True):
    """A graph: names of switches and hosts, and every link. NICs are numbered in order of the links."""

    switches: tuple[str, ...]
    hosts: tuple[str, ...]
    links: tuple[Cable, ...]

    def graph(self) -> FabricGraph:
        """The cables, one by one."""
        return FabricGraph(self.switches, self.hosts, *expand(self.links, self.hosts))


class Tier(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many switches of a kind."""

    count: int


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Link rates, written such as `10gbit`; `uplink` is that of all links between switches."""

    nic: str
    uplink: str


class LeafSpine(FabricOptions, frozen=True):
    """Every leaf has a link to every spine: with `attach` also rails, planes and bonds."""

    leaf: Tier
    spine: Tier
    hosts: HostGroup
    rates: Rates

    def graph(self) -> FabricGraph:
        """Leaves `leafN`, spines `spineN`, hosts `hN`."""
        _check_counts(self, {"leaf.count": self.leaf.count, "spine.count": self.spine.count})
        leaves, spines = numbered("leaf", self.leaf.count), numbered("spine", self.spine.count)
        trunks = _meshed(leaves, spines, 1, _uplink_bps(self))
        return _with_hosts(self, self.hosts, leaves, spines, trunks)


class FatTree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`pods` of `leaves` and `spines` each; spine s of every pod has links to `cores` switches, group s."""

    pods: int
    leaves: int
    spines: int
    cores: int


class FatTreeForm(FabricOptions, frozen=True):
    """Three tiers: hosts fill the leaves in order, pod by pod."""

    fat_tree: FatTree
    hosts: HostGroup
    rates: Rates

    def graph(self) -> FabricGraph:
        """Leaves and spines are numbered through all pods; spine s of a pod meets `coreN` of its own group."""
        tree = self.fat_tree
        _check_counts(self, {f"fat_tree.{key}": count for key, count in msgspec.structs.asdict(tree).items()})
        _check_switches("fat_tree", tree.pods * (tree.leaves + tree.spines) + tree.spines * tree.cores)
        leaves, spines = numbered("leaf", tree.pods * tree.leaves), numbered("spine", tree.pods * tree.spines)
        cores = numbered("core", tree.spines * tree.cores)
        rate_bps = _uplink_bps(self)
        trunks = _meshed(leaves, spines, tree.pods, rate_bps)
        for pod in range(tree.pods):
            trunks += _meshed(spines[pod * tree.spines :][: tree.spines], cores, tree.spines, rate_bps)
        return _with_hosts(self, self.hosts, leaves, (*spines, *cores), trunks)


class Sites(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`count` sites in a row, each with a border switch; neighbours are joined by `links` of that rate and delay."""

    count: int
    rate: str
    delay: str
    links: int = 1


class SitesForm(FabricOptions, frozen=True):
    """Sites that are leaf-spine fabrics of the given size each; their spines meet at a border switch."""

    sites: Sites
    leaf: Tier
    spine: Tier
    hosts: HostGroup
    rates: Rates

    def graph(self) -> FabricGraph:
        """Switches and hosts are numbered through all sites; `borderN` is site N's. `hosts.count` is that of a site."""
        sites, leaf, spine = self.sites, self.leaf.count, self.spine.count
        counts = {"sites.count": sites.count, "sites.links": sites.links, "leaf.count": leaf, "spine.count": spine}
        _check_counts(self, counts)
        _check_switches("sites", sites.count * (leaf + spine + 1))
        leaves, spines = numbered("leaf", sites.count * leaf), numbered("spine", sites.count * spine)
        borders = numbered("border", sites.count)
        rate_bps = _uplink_bps(self)
        long_bps, delay_s = rate_of(("sites", "rate"), sites.rate), delay_of(("sites", "delay"), sites.delay)
        trunks = _meshed(leaves, spines, sites.count, rate_bps) + _meshed(spines, borders, sites.count, rate_bps)
        trunks += [Trunk(a, b, long_bps, delay_s) for a, b in pairwise(borders) for _ in range(sites.links)]
        everywhere = msgspec.structs.replace(self.hosts, count=sites.count * self.hosts.count)
        return _with_hosts(self, everywhere, leaves, (*spines, *borders), trunks)


Form = GraphForm | FatTreeForm | SitesForm | LeafSpine
# By the key that only this form has; the form without one is last.
_FORMS: dict[str, type[Form]] = {
    "switches": GraphForm,
    "fat_tree": FatTreeForm,
    "sites": SitesForm,
    "": LeafSpine,
}
_DOTTED = re.compile(r"[a-z_]+(\.[\w-]+|\[\d+\])*")
_STEPS = re.compile(r"\[(\d+)\]|([\w-]+)")
_COUNT_AT_MOST = 64  # of one kind of switch, of pods, sites and hosts


def names() -> list[str]:
    """The topologies that come with the package."""
    return sorted(path.stem for path in DIRECTORY.glob("*.yml"))


def path_of(name_or_path: str) -> Path:
    """The file itself, or that of a named topology, whether it is there or not."""
    named = DIRECTORY / f"{name_or_path}.yml"
    if named.is_file() and not name_or_path.endswith((".yml", ".yaml")):
        return named
    is_file = "/" in name_or_path or "." in name_or_path or Path(name_or_path).exists()
    return Path(name_or_path) if is_file else named


def load(name_or_path: str) -> Topology:
    """Read a named topology, a file, or a cabling file of another tool (`c4bench.inventory.cabling`).

    Raises UsageError naming file, key and reason when it is not a valid one.
    """
    path = path_of(name_or_path)
    if not path.exists():
        known = f"one of {', '.join(names())}, or a file"
        if path == Path(name_or_path):
            raise UsageError(f"{file_name(path)}: no such file; give {known}")
        raise UsageError(f"unknown topology {name_or_path!r}: {known}{meant(name_or_path, names())}")
    content = read_bounded(path)
    return _imported(content, path) if cabling.recognise(content) else parse(content, str(path))


def _imported(content: bytes, path: Path) -> Topology:
    """The fabric of another tool's cabling file."""
    wiring = cabling.parse(content, path)
    try:
        wiring = cabling.with_roles(wiring)
        links, switches, hosts = cabling.cables(wiring), cabling.switches_of(wiring), cabling.hosts_of(wiring)
        name, description = cabling.titles(str(path))
        return made(GraphForm(name=name, description=description, switches=switches, hosts=hosts, links=links))
    except UsageError as error:
        advice = "`c4bench topology import` writes a topology file of it, with --hosts, --rate and --scale"
        raise UsageError(f"{file_name(path)} ({wiring.kind}): {error}; {advice}") from None


def parse(text: str | bytes, where: str) -> Topology:
    """Parse and check topology YAML; `where` names it in errors."""
    try:
        document: Any = from_yaml(text)
        keys = document if isinstance(document, dict) else {}
        form = next(form for key, form in _FORMS.items() if not key or key in keys)
        return made(msgspec.convert(document, form))
    except DecodingError as error:
        raise UsageError(f"{where}: {_yaml_place(error)}: not YAML; check quoting and indentation") from None
    except msgspec.ValidationError as error:
        problem, steps = split(str(error))
        raise located(where, text, steps, problem) from None
    except UsageError as error:
        named, problem = _keyed(str(error))
        raise located(where, text, named, problem) from None


def made(form: Form) -> Topology:
    """The fabric of a form. Raises UsageError that names the key and the reason."""
    graph = form.graph()
    _check(graph, form)
    return build(graph, form)


def _keyed(message: str) -> tuple[Keys, str]:
    """The keys that an error about a graph begins with, such as `links[3].rate`, and the problem."""
    named, _, problem = message.partition(": ")
    if not _DOTTED.fullmatch(named):
        return (), message
    return [key or int(number) for number, key in _STEPS.findall(named)], problem


def _yaml_place(error: DecodingError) -> str:
    return f"line {error.line}" if error.line else "somewhere"


def _check_counts(form: LeafSpine | FatTreeForm | SitesForm, counts: Mapping[str, int]) -> None:
    """Raises UsageError for numbers that no lab's fabric has, before anything is made by them."""
    for key, count in {**counts, "hosts.count": form.hosts.count}.items():
        if not 1 <= count <= _COUNT_AT_MOST:
            raise UsageError(f"{key}: {count}; give 1 to {_COUNT_AT_MOST}")
    if not 1 <= form.hosts.nics <= NICS_AT_MOST:
        raise UsageError(f"hosts.nics: {form.hosts.nics}; give 1 to {NICS_AT_MOST}")


def _check_switches(key: str, count: int) -> None:
    if count > SWITCHES_AT_MOST:
        raise UsageError(f"{key}: {count} switches; a lab has up to {SWITCHES_AT_MOST}")


def _uplink_bps(form: LeafSpine | FatTreeForm | SitesForm) -> float:
    return rate_of(("rates", "uplink"), form.rates.uplink)


def _meshed(lower: Sequence[str], upper: Sequence[str], pods: int, rate_bps: float) -> list[Trunk]:
    """A link from every lower switch to every upper one of its pod; the pods share both in order."""
    trunks = []
    for pod in range(pods):
        above = upper[pod * len(upper) // pods : (pod + 1) * len(upper) // pods]
        for switch in lower[pod * len(lower) // pods : (pod + 1) * len(lower) // pods]:
            trunks += [Trunk(switch, other, rate_bps) for other in above]
    return trunks


def _with_hosts(
    form: LeafSpine | FatTreeForm | SitesForm,
    group: HostGroup,
    leaves: tuple[str, ...],
    others: tuple[str, ...],
    trunks: Sequence[Trunk],
) -> FabricGraph:
    """The graph of these switches, with the hosts cabled to the leaves."""
    hosts, ports = attach(group, leaves, rate_of(("rates", "nic"), form.rates.nic))
    return FabricGraph((*leaves, *others), hosts, tuple(ports), tuple(trunks))
