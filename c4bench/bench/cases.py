"""What a bench run consists of: labs to boot, and in each the cases to measure, in order."""

from typing import Literal

import msgspec

from c4bench.lab.topology import Topology
from c4bench.workload.cases import Kind

Load = Literal["idle", "line_rate"]


class LinkCase(msgspec.Struct, frozen=True, tag="link"):
    """Goodput of one connection, a figure for each of `sizes_bytes`; `total_bytes` are sent of each."""

    sizes_bytes: tuple[int, ...]
    total_bytes: int


class PerftestCase(msgspec.Struct, frozen=True, tag="perftest"):
    """Our link against perftest's, `rounds` times in turn. `tick_mhz` is what the machine says of its processor."""

    size_bytes: int
    messages: int
    rounds: int
    tick_mhz: float


class CollectiveCase(msgspec.Struct, frozen=True, tag="collective"):
    """Bus bandwidth of a collective over the first `hosts`; `at_least` is its limit, as a share of the bound."""

    collective: Kind
    hosts: int
    size_bytes: int
    operations: int
    at_least: float | None = None


class RecorderCase(msgspec.Struct, frozen=True, tag="recorder"):
    """All-reduce with the recorder and without, `rounds` times in turn."""

    size_bytes: int
    rounds: int


class LoadCase(msgspec.Struct, frozen=True, tag="load"):
    """Let `seconds` pass on the lab's clock with all hosts under that load; what it costs is measured outside."""

    load: Load
    seconds: float


Case = LinkCase | PerftestCase | CollectiveCase | RecorderCase | LoadCase


class Stage(msgspec.Struct, frozen=True):
    """One lab: its fabric, its clock, and what to measure in it."""

    topology: Topology
    virtual: bool
    cases: tuple[Case, ...]
