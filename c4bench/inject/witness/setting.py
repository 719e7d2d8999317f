"""Witnesses of settings that are wrong without any other effect: they read back what hardware and driver have."""

from collections.abc import Callable

from c4bench.inject import connectx
from c4bench.inject.connectx import ENDS, FLOOR_OFF
from c4bench.inject.registry import witness
from c4bench.inject.witness.figure import Figure
from c4bench.model.fault import FaultRequest


def _setting(name: str, request: FaultRequest, read: Callable[[], float], expected: Callable[[float], bool]) -> Figure:
    """Seen when the setting has changed to what was `expected`."""
    return Figure(name, request.witness_s, read, lambda before, now: now != before and expected(now))


@witness("qos_trust")
def qos_trust(request: FaultRequest) -> Figure:
    """Whether the interface trusts DSCPs, 1 or 0."""
    netdev = request.interface.netdev
    return _setting("trusts_dscp", request, lambda: float(connectx.trusts_dscp(netdev)), lambda now: not now)


@witness("forced_traffic_class")
def forced_traffic_class(request: FaultRequest) -> Figure:
    """The traffic class of all packets of the device, -1 for none."""
    nic = request.interface
    return _setting("traffic_class", request, lambda: float(connectx.forced_class(nic)), lambda now: now >= 0)


@witness("congestion_control")
def congestion_control(request: FaultRequest) -> Figure:
    """At how many priorities congestion control is on, over the ends that the fault switches off."""
    nic, ends = request.interface, ENDS[request.choice("end")]
    return _setting(
        "priorities", request, lambda: float(len(connectx.congestion_control(nic, ends))), lambda now: not now
    )


@witness("ack_floor")
def ack_floor(request: FaultRequest) -> Figure:
    """Whether the floor of acknowledgement time-outs is off, 1 or 0."""
    nic, off = request.interface, float(request.choice("floor") == "off")
    return _setting(
        "floor_off", request, lambda: float(connectx.read_acceleration(nic)[FLOOR_OFF]), lambda now: now == off
    )
