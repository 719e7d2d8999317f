"""The JSON output of `c4bench doctor --hosts`, which a run directory keeps too."""

from collections.abc import Sequence

import msgspec

from c4bench.c4p.knowledge.graph_comparison import CableDifference
from c4bench.doctor.capabilities import Report
from c4bench.doctor.lldp import compare_neighbours
from c4bench.doctor.switches import SwitchReport
from c4bench.inventory import Inventory


class Document(msgspec.Struct, frozen=True):
    """Every host and every switch of an inventory, in its order, and how their cables differ from its graph."""

    hosts: tuple[Report, ...]
    switches: tuple[SwitchReport, ...]
    differences: tuple[CableDifference, ...] = ()


def document(inventory: Inventory, hosts: Sequence[Report], switches: Sequence[SwitchReport]) -> Document:
    """The reports, with what LLDP finds of the cables that the inventory states."""
    if inventory.graph is None:
        return Document(tuple(hosts), tuple(switches))
    seen = {report.host: report.neighbours for report in hosts}
    seen |= {report.switch: report.neighbours for report in switches}
    return Document(tuple(hosts), tuple(switches), compare_neighbours(inventory.graph, inventory.hosts, seen))
