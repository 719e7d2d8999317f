"""Witnesses by name: each looks at the target by other means than those that brought the fault about.

A fault that its witness does not see proves nothing: the scenario is inconclusive, not passed. To add one: write the
class in a module of its own, and list it here under the name that the catalogue uses.
"""

from collections.abc import Callable, Mapping
from functools import partial

from c4bench.inject.witness.base import Witness
from c4bench.inject.witness.link import LinkState
from c4bench.inject.witness.loss import PacketLoss
from c4bench.inject.witness.pace import ComputePace
from c4bench.inject.witness.peak import PeakRate
from c4bench.inject.witness.state import ENDED, STOPPED, ProcessState
from c4bench.model.fault import FaultRequest

WITNESSES: Mapping[str, Callable[[FaultRequest], Witness]] = {
    "peak_rate": PeakRate,
    "packet_loss": PacketLoss,
    "link_state": LinkState,
    "process_stopped": partial(ProcessState, STOPPED),
    "process_ended": partial(ProcessState, ENDED),
    "compute_pace": ComputePace,
}
