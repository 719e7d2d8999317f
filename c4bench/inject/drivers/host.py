"""Faults of a whole host."""

import math

from c4bench.errors import UnhealthyError
from c4bench.inject import targets
from c4bench.inject.actions import Delete, Fill, Plan, Run, StepClock, Write, together
from c4bench.inject.drivers import netdev
from c4bench.inject.interfaces import INGRESS
from c4bench.inject.registry import driver
from c4bench.inject.targets import HostTarget
from c4bench.model.fault import FaultRequest

_FILLER = "c4bench-fault"
# Share of the available memory that stays free: without any the host cannot revert the fault.
_MEMORY_SPARED = 0.1


@driver("host.crash")
def crash(request: FaultRequest, target: HostTarget) -> Plan:
    """Make the kernel panic, and restart by itself when the lease ends."""
    again = Write(str(targets.PANIC), f"{math.ceil(request.lease_s)}")
    return Plan(("power",), (again, _sysrq(request, target, "c")), (Write(str(targets.PANIC), target.panic),))


@driver("host.reboot")
def reboot(request: FaultRequest, target: HostTarget) -> Plan:
    """Restart at once."""
    return Plan(("power",), (_sysrq(request, target, "b"),), ())


def _sysrq(request: FaultRequest, target: HostTarget, letter: str) -> Write:
    """A magic SysRq command (Linux, Documentation/admin-guide/sysrq.rst)."""
    if not target.sysrq:
        raise UnhealthyError(f"{request.host} has no /proc/sysrq-trigger; its kernel was built without magic SysRq")
    return Write(target.sysrq, letter)


@driver("host.clock_step")
def clock_step(request: FaultRequest, target: HostTarget) -> Plan:
    """Step the clock, and step it back to undisturbed time."""
    if target.shared:
        raise UnhealthyError(
            f"{request.host} shares its clock with other hosts of the same kernel; use a host with its own kernel"
        )
    away = StepClock(target.time_s, target.monotonic_s, request.number("offset_s"))
    return Plan(("clock",), (away,), (StepClock(target.time_s, target.monotonic_s, 0.0),))


@driver("host.memory")
def memory(request: FaultRequest, target: HostTarget) -> Plan:
    """Take memory with a file in tmpfs: no process has to hold it, and deleting it frees all of it."""
    size_bytes, spare = int(request.number("bytes")), int(target.memory_available_bytes * _MEMORY_SPARED)
    if size_bytes > target.memory_available_bytes - spare:
        raise UnhealthyError(
            f"{request.host} has {target.memory_available_bytes} bytes of memory available, of which {spare} "
            "must stay free; ask for less"
        )
    path = str(targets.MEMORY / _FILLER)
    return Plan(("memory",), (Fill(path, size_bytes),), (Delete(path),))


@driver("host.disk_full")
def disk_full(request: FaultRequest, target: HostTarget) -> Plan:
    """Allocate all free space but `left_bytes`."""
    size_bytes = target.disk_available_bytes - int(request.number("left_bytes"))
    if size_bytes <= 0:
        raise UnhealthyError(
            f"{request.host}: {targets.LOGS} has only {target.disk_available_bytes} bytes left; "
            "ask for fewer left_bytes"
        )
    path = str(targets.LOGS / _FILLER)
    return Plan(("disk",), (Fill(path, size_bytes),), (Delete(path),))


@driver("host.management_cut")
def management_cut(request: FaultRequest, target: HostTarget) -> Plan:
    """Drop everything on the interface of the default route."""
    if target.management is None:
        raise UnhealthyError(f"{request.host} has no default route, so its management interface is unknown; add one")
    if any(qdisc.kind in INGRESS for qdisc in target.management.qdiscs()):
        raise UnhealthyError(
            f"{request.host}: its management interface has its own filters; remove them first: tc qdisc del"
        )
    dev = target.management.interface.netdev
    drop = [
        Run(("tc", "filter", "add", "dev", dev, hook, "pref", "1", "matchall", "action", "drop"))
        for hook in ("ingress", "egress")
    ]
    hooks = Run(("tc", "qdisc", "add", "dev", dev, "clsact"))
    undo = Run(("tc", "qdisc", "del", "dev", dev, "clsact"))
    return Plan((f"ingress of {dev}",), (hooks, *drop), (undo,), sudden=len(drop))


@driver("host.data_cut")
def data_cut(request: FaultRequest, target: HostTarget) -> Plan:
    """Drop every packet on every NIC."""
    if not target.nics:
        raise UnhealthyError(f"{request.host} has no NICs in the inventory (c4.nics is empty)")
    return together(*(netdev.blackhole_both(nic) for nic in target.nics))
