"""Bench stages: the labs to boot, and the cases to measure in each, in order."""

from typing import Literal

import msgspec

from c4bench.lab.topology import Topology
from c4bench.workload.collectives import Kind

Load = Literal["idle", "line_rate"]


class LinkCase(msgspec.Struct, frozen=True, tag="link"):
    """Goodput of one connection, a figure for each of `sizes_bytes`; `total_bytes` are sent of each."""

    sizes_bytes: tuple[int, ...]
    total_bytes: int


class PerftestCase(msgspec.Struct, frozen=True, tag="perftest"):
    """Our link against perftest's, alternating, `rounds` times. `tick_mhz` is the CPU clock from /proc/cpuinfo."""

    size_bytes: int
    messages: int
    rounds: int
    tick_mhz: float


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
