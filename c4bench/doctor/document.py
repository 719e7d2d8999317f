"""The JSON output of `c4bench doctor --hosts`, which a run directory keeps too."""

from collections.abc import Sequence
from typing import Self

import msgspec

from c4bench.doctor.capabilities import Report
from c4bench.doctor.switches import SwitchReport
from c4bench.doctor.traffic_class import disagreements


class Document(msgspec.Struct, frozen=True):
    """Every host and every switch of an inventory, in its order, and what they disagree about."""

    hosts: tuple[Report, ...]
    switches: tuple[SwitchReport, ...]
    disagreements: tuple[str, ...] = ()

    @classmethod
    def of(cls, hosts: Sequence[Report], switches: Sequence[SwitchReport]) -> Self:
        """Compare hosts and switches with each other."""
        known = {report.host: report.queues for report in hosts} | {report.switch: report.queues for report in switches}
        return cls(tuple(hosts), tuple(switches), tuple(disagreements(known)))
