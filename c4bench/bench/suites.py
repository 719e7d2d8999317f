"""The suites: which labs each one boots and what it measures there. Pure; holds the sizes, rates and limits."""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Literal

import msgspec

from c4bench.lab.topology import Topology
from c4bench.lab.topology_file import HostGroup, LeafSpine, Rates, Tier, load, made
from c4bench.units import format_rate
from c4bench.workload.collectives import Kind

KIB, MIB = 1 << 10, 1 << 20
GIGA = 10**9

COLLECTIVES: tuple[Kind, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
LINK_LIMIT = 0.99
LINK_LIMIT_FROM_BYTES = MIB
_LINK_SIZES = tuple(4 * KIB << 2 * step for step in range(8))
_ONE_NIC_LIMITS: Mapping[Kind, float] = {"all_reduce": 0.985, "all_to_all": 0.95}
_RAILS_LIMITS: Mapping[Kind, float] = {"all_reduce": 0.97, "all_to_all": 0.95}
_LIMITS_AT_HOSTS = 8
Load = Literal["idle", "line_rate"]


class LinkCase(msgspec.Struct, frozen=True, tag="link"):
    """Goodput of one connection, a figure for each of `sizes_bytes`; `total_bytes` are sent of each."""

    sizes_bytes: tuple[int, ...]
    total_bytes: int


class PerftestCase(msgspec.Struct, frozen=True, tag="perftest"):
    """Our link against perftest's, alternating, `rounds` times."""

    size_bytes: int
    messages: int
    rounds: int


class CollectiveCase(msgspec.Struct, frozen=True, tag="collective"):
    """Bus bandwidth of a collective over the first `hosts` hosts; `at_least` is its limit as a share of the bound."""

    collective: Kind
    hosts: int
    size_bytes: int
    operations: int
    at_least: float | None = None


class RecorderCase(msgspec.Struct, frozen=True, tag="recorder"):
    """All-reduce with and without the recorder, alternating, `rounds` times."""

    size_bytes: int
    rounds: int


class LoadCase(msgspec.Struct, frozen=True, tag="load"):
    """Run all hosts under `load` for `seconds` of the lab's clock; the cost is measured outside the lab."""

    load: Load
    seconds: float


Case = LinkCase | PerftestCase | CollectiveCase | RecorderCase | LoadCase


class Stage(msgspec.Struct, frozen=True):
    """One lab: its fabric, its clock, and what to measure in it."""

    topology: Topology
    virtual: bool
    cases: tuple[Case, ...]


def star(hosts: int, rate_bps: int) -> Topology:
    """Hosts under one switch: no two flows of different NICs share a link, so that a collective's bound is its own."""
    return _leaf_spine(f"star-{hosts}", f"{hosts} hosts under one switch", 1, hosts, rate_bps)


def pair(rate_bps: int) -> Topology:
    """The smallest fabric with a path through it, at that rate."""
    return _leaf_spine("pair", "two hosts under two leaves and a spine", 2, 2, rate_bps)


def _leaf_spine(name: str, description: str, leaves: int, hosts: int, rate_bps: int) -> Topology:
    rate = f"{rate_bps // GIGA}gbit"
    return made(
        LeafSpine(
            name=f"{name}-{rate}",
            description=f"{description}, {format_rate(rate_bps)}",
            leaf=Tier(leaves),
            spine=Tier(1),
            hosts=HostGroup(hosts),
            rates=Rates(rate, rate),
        )
    )


def link(*, quick: bool) -> list[Stage]:
    """One connection, 4 KiB to 64 MiB, at 10, 25 and 100 Gbit/s."""
    rates = (10,) if quick else (10, 25, 100)
    sizes = tuple(size for size in _LINK_SIZES if size <= MIB) if quick else _LINK_SIZES
    case = LinkCase(sizes, total_bytes=(16 if quick else 64) * MIB)
    return [Stage(pair(rate * GIGA), virtual=True, cases=(case,)) for rate in rates]


def perftest(*, quick: bool) -> list[Stage]:
    """Our link against `ib_write_bw` on the machine's clock, without rate shaping."""
    case = PerftestCase(MIB, messages=200, rounds=3 if quick else 15)
    return [Stage(pair(100 * GIGA), virtual=False, cases=(case,))]


def collectives(*, quick: bool) -> list[Stage]:
    """Every collective: over 2 to 16 hosts at 10 and 100 Gbit/s, and over four rails of eight hosts at 25 Gbit/s."""
    if quick:
        return [Stage(star(8, 10 * GIGA), virtual=True, cases=_collectives((8,), 16 * MIB, _ONE_NIC_LIMITS))]
    one_nic = _collectives((2, 4, 8, 16), 16 * MIB, _ONE_NIC_LIMITS)
    rails = _collectives((8,), 16 * MIB, _RAILS_LIMITS)
    return [
        Stage(star(16, 10 * GIGA), virtual=True, cases=one_nic),
        Stage(star(16, 100 * GIGA), virtual=True, cases=one_nic),
        Stage(load("rails-4"), virtual=True, cases=rails),
    ]


def _collectives(hosts: Iterable[int], size_bytes: int, limits: Mapping[Kind, float]) -> tuple[Case, ...]:
    return tuple(
        CollectiveCase(kind, count, size_bytes, 4, limits.get(kind) if count == _LIMITS_AT_HOSTS else None)
        for count in hosts
        for kind in COLLECTIVES
    )


def recorder(*, quick: bool) -> list[Stage]:
    """The recorder's share of bandwidth, on the machine's clock."""
    return [Stage(pair(100 * GIGA), virtual=False, cases=(RecorderCase(MIB, rounds=200 if quick else 2000),))]


def lab(*, quick: bool) -> list[Stage]:
    """What a second of the lab's time costs the machine, by hosts, idle and with every NIC at line rate."""
    loads: tuple[Case, ...] = (LoadCase("idle", 20.0), LoadCase("line_rate", 0.2))
    counts = (2, 8) if quick else (2, 4, 8, 16)
    return [Stage(star(count, 10 * GIGA), virtual=True, cases=(load,)) for count in counts for load in loads]


def merged(stages: Iterable[Stage]) -> list[Stage]:
    """The same cases in as few labs as possible; a load keeps its own, since a lab's memory is measured whole."""
    alone = []
    shared: dict[tuple[str, bool], Stage] = {}
    for stage in stages:
        if any(isinstance(case, LoadCase) for case in stage.cases):
            alone.append(stage)
            continue
        key = stage.topology.name, stage.virtual
        known = shared.get(key)
        cases = tuple(chain(known.cases if known else (), stage.cases))
        shared[key] = msgspec.structs.replace(stage, cases=cases)
    return [*shared.values(), *alone]
