"""Witnesses that read one value before, during and after the fault."""

import ipaddress
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from c4bench.inject import gpus, interfaces, targets
from c4bench.inject.registry import witness
from c4bench.inject.witness.base import Polled, Values
from c4bench.model.fault import FaultRequest

_INFINIBAND = Path("/sys/class/infiniband")
_GIDS_READ = 16
_NEAR = 0.05


class Figure(Polled):
    """The value `name` from `read`. Seen when `changed(before, now)`, recovered when within 5 % of the value before."""

    def __init__(
        self, name: str, window_s: float, read: Callable[[], float], changed: Callable[[float, float], bool]
    ) -> None:
        def recovered(before: Values, now: Values) -> bool:
            was, is_now = before[name], now[name]
            return abs(is_now - was) <= _NEAR * abs(was) or not changed(was, is_now)

        super().__init__(
            window_s, lambda: {name: read()}, lambda before, now: changed(before[name], now[name]), recovered
        )


def gid_table(request: FaultRequest) -> Figure:
    """The number of the port's GIDs that hold the NIC's IPv4 address."""
    nic = request.interface
    table = _INFINIBAND / nic.device / "ports/1/gids"
    mapped = ipaddress.IPv6Address(f"::ffff:{interfaces.examine(nic).addresses()[0].local}")
    own = mapped.packed.hex(":", 2)

    def read() -> float:
        return float(sum((table / str(index)).read_text().strip() == own for index in range(_GIDS_READ)))

    return Figure("gids", request.witness_s, read, lambda before, now: before > 0 and now == 0)


@witness("memory_available")
def memory_available(request: FaultRequest) -> Figure:
    """The memory that can be allocated, bytes."""
    taken = request.number("bytes")
    return Figure(
        "available_bytes",
        request.witness_s,
        lambda: float(targets.memory_available_bytes()),
        lambda before, now: before - now >= taken / 2,
    )


@witness("disk_available")
def disk_available(request: FaultRequest) -> Figure:
    """The free space of the log file system, bytes."""
    # File systems allocate blocks, and other processes write meanwhile.
    threshold_bytes = max(request.number("left_bytes") * 2, 1 << 20)
    return Figure(
        "available_bytes",
        request.witness_s,
        lambda: float(targets.disk_available_bytes(targets.LOGS)),
        lambda before, now: now <= threshold_bytes < before or now < before / 10,
    )


@witness("clock_offset")
def clock_offset(request: FaultRequest) -> Figure:
    """The time of day against the monotonic clock, s."""
    asked = request.number("offset_s")
    return Figure(
        "offset_s",
        request.witness_s,
        lambda: time.time() - time.monotonic(),
        lambda before, now: abs(now - before - asked) < _NEAR * abs(asked),
    )


@witness("link_speed")
def link_speed(request: FaultRequest) -> Figure:
    """The negotiated link speed that the kernel reports, Mbit/s."""
    speed = Path("/sys/class/net") / request.interface.netdev / "speed"
    return Figure("speed_mbps", request.witness_s, lambda: float(speed.read_text()), lambda before, now: now < before)


@witness("pcie_speed")
def pcie_speed(request: FaultRequest) -> Figure:
    """The PCIe link speed that the kernel reports, GT/s."""
    speed = _INFINIBAND / request.interface.device / "device/current_link_speed"
    return Figure(
        "gigatransfers",
        request.witness_s,
        lambda: float(speed.read_text().split()[0]),
        lambda before, now: now < before,
    )


@witness("port_rate")
def port_rate(request: FaultRequest) -> Figure:
    """The rate of the port's transmit counter, bit/s; it counts words of four bytes (IBTA 16.1.3.5)."""
    counter = _INFINIBAND / request.interface.device / "ports/1/counters/port_xmit_data"
    limit_bps = request.number("fraction") * (request.nic.rate_bps if request.nic else 0.0)

    def read() -> float:
        began_s, began = time.monotonic(), int(counter.read_text())
        time.sleep(request.witness_s)
        return (int(counter.read_text()) - began) * 32 / (time.monotonic() - began_s)

    return Figure("rate_bps", request.witness_s, read, lambda before, now: 0 < now <= 1.1 * limit_bps < before)


def gpu_clock(request: FaultRequest) -> Figure:
    """The graphics clock as the driver reports it, MHz."""
    asked = request.number("clock_mhz")
    return Figure("clock_mhz", request.witness_s, lambda: gpus.examine(request).clock_mhz, lambda _, now: now <= asked)


def gpu_power(request: FaultRequest) -> Figure:
    """The power limit that is enforced, W."""
    asked = request.number("limit_w")
    return Figure("limit_w", request.witness_s, lambda: gpus.examine(request).enforced_w, lambda _, now: now <= asked)


@witness("gpu_xid")
def gpu_xid(request: FaultRequest) -> Figure:
    """The newest XID that DCGM reports."""

    def read() -> float:
        argv = ("dcgmi", "dmon", "-i", str(request.gpu), "-e", "230", "-c", "1")
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return gpus.parse_xid(done.stdout)

    return Figure("xid", request.witness_s, read, lambda _, now: now == request.number("xid"))
