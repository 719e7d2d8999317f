"""The JSON output of `c4bench doctor --hosts`, which a run directory keeps too."""

from collections.abc import Sequence

import msgspec

from c4bench.c4p.knowledge.graph_comparison import CableDifference
from c4bench.doctor.capabilities import Report
from c4bench.doctor.lldp import compare_neighbours
from c4bench.doctor.switches import SwitchReport
from c4bench.doctor.traffic_class import disagreements
from c4bench.inventory import Inventory


class Document(msgspec.Struct, frozen=True):
    """Every host and every switch of an inventory, in its order.

    `disagreements` are settings that differ between them, `differences` cables that differ from the inventory's graph.
    """

    hosts: tuple[Report, ...]
    switches: tuple[SwitchReport, ...]
    disagreements: tuple[str, ...] = ()
    differences: tuple[CableDifference, ...] = ()


def document(inventory: Inventory, hosts: Sequence[Report], switches: Sequence[SwitchReport]) -> Document:
    """The reports, compared with each other, and what LLDP finds of the cables that the inventory states."""
    queues = {report.host: report.queues for report in hosts} | {report.switch: report.queues for report in switches}
    seen = {report.host: report.neighbours for report in hosts}
    seen |= {report.switch: report.neighbours for report in switches}
    graph = inventory.graph
    cables = () if graph is None else compare_neighbours(graph, inventory.hosts, seen)
    return Document(tuple(hosts), tuple(switches), tuple(disagreements(queues)), cables)
