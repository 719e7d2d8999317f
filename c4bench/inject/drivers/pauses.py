"""Pause storms: the NIC tells the switch's port to it to stand still, again and again.

The frames are real ones of the NIC's link, from a raw socket. Whether hardware sends such frames for a program, and
whether the switch obeys them, only the witness can tell.
"""

import time
from pathlib import Path

from c4bench.errors import UnhealthyError
from c4bench.inject import interfaces
from c4bench.inject.actions import Delete, Plan
from c4bench.inject.interfaces import InterfaceTarget
from c4bench.inject.pause_frames import Pauses, SendPauses
from c4bench.inject.registry import driver
from c4bench.model.fabric import Nic
from c4bench.model.fault import FaultRequest

# What the lab's ports have set, of this namespace.
_LAB_PORTS = Path("/proc/thread-self/net/pfc")
_RUNNING = "/run/c4bench-pauses-{}"


@driver("pauses.storm")
def storm(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Send pause frames from a process that ends with the lease, or as soon as the revert deletes its file."""
    nic, priority = target.interface, int(request.number("priority"))
    if not isinstance(nic, Nic) or not nic.rate_bps:
        raise UnhealthyError(f"the inventory has no rate of {request.where}; add it, such as rate: 100gbit")
    shortest_s, longest_s = request.number("shortest_s"), request.number("longest_s")
    if shortest_s > longest_s:
        raise UnhealthyError(f"shortest_s is {shortest_s:g}, more than longest_s, {longest_s:g}; exchange them")
    netdevs = nic.bond or (nic.netdev,)
    if interfaces.hardware(nic) == "rxe" and not all(_pauses(netdev, priority) for netdev in netdevs):
        raise UnhealthyError(
            f"the link of {request.where} has no flow control of priority {priority}; see `pfc` of topologies"
        )
    pauses = Pauses(netdevs, nic.cable_bps, priority, shortest_s, longest_s, request.number("duty"), request.where)
    running = _RUNNING.format(nic.netdev)
    started = SendPauses(pauses, running, time.monotonic() + request.lease_s)
    return Plan((target.claim("pause frames"),), (started,), (Delete(running),))


def _pauses(netdev: str, priority: int) -> bool:
    """Whether a port of the lab has flow control of this priority."""
    lines = [line.split() for line in _LAB_PORTS.read_text().splitlines()] if _LAB_PORTS.exists() else []
    masks = [int(words[words.index("lossless") + 1]) for words in lines if words[:2] == [netdev, "settings"]]
    return any(mask >> priority & 1 for mask in masks)
