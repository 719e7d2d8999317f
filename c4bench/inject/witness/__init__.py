"""Witnesses by name: each looks at the target by other means than those that brought the fault about.

A fault that its witness does not see proves nothing: the scenario is inconclusive, not passed. To add one: write the
class in a module of its own, and list it here under the name that the catalogue uses.
"""

from collections.abc import Callable, Mapping
from functools import partial

from c4bench.inject.witness import accelerator, answer, echo, figure, forwarding
from c4bench.inject.witness.base import Witness
from c4bench.inject.witness.pace import ComputePace, LateStep, Standstill
from c4bench.inject.witness.peak import PeakRate
from c4bench.inject.witness.state import ENDED, STOPPED, ProcessState
from c4bench.model.fault import FaultRequest

WITNESSES: Mapping[str, Callable[[FaultRequest], Witness]] = {
    "acks_lost": forwarding.AcksLost,
    "clock_offset": figure.clock_offset,
    "compute_pace": ComputePace,
    "disk_available": figure.disk_available,
    "echo_delay": echo.EchoDelay,
    "echo_loss": echo.EchoLoss,
    "echo_order": echo.EchoOrder,
    "echo_size": echo.EchoSize,
    "gid_table": answer.gid_table,
    "gpu_clock": accelerator.clock,
    "gpu_ended": accelerator.ended,
    "gpu_power": accelerator.power,
    "gpu_standstill": accelerator.standstill,
    "gpu_xid": figure.gpu_xid,
    "late_step": LateStep,
    "link_flaps": answer.link_flaps,
    "link_speed": figure.link_speed,
    "link_state": answer.link_state,
    "memory_available": figure.memory_available,
    "nics_dead": echo.NicsDead,
    "pcie_speed": figure.pcie_speed,
    "peak_rate": PeakRate,
    "port_rate": figure.port_rate,
    "port_share": forwarding.PortShare,
    "process_ended": partial(ProcessState, ENDED),
    "process_stopped": partial(ProcessState, STOPPED),
    "standstill": Standstill,
    "switch_state": answer.switch_state,
}
# Faults after which the host does not answer: only the controller can see that.
ABSENCE = "absence"
