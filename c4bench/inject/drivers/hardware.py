"""Faults that a NIC's own hardware has: the speed of its link and of its PCIe link, and the rate of a traffic class.

ConnectX NICs by `ethtool` and `mlnx_qos`, their InfiniBand ports by `mlxlink`; `tc` does not affect what the hardware
sends. PCIe links by the registers of the upstream port (PCI Express Base Specification 7.5.3).
"""

import re

from c4bench.decoding import decoding
from c4bench.errors import UnhealthyError
from c4bench.inject.actions import Plan, Run, run
from c4bench.inject.interfaces import InterfaceTarget
from c4bench.inject.registry import driver
from c4bench.model.fault import FaultRequest

_CLASSES = 8
_MODE = re.compile(r"\d+base\S+/\S+")
_LIMIT = re.compile(r"^tc: (\d) ratelimit: (unlimited|(\d+(?:\.\d+)?) (Gbps|Mbps))", re.MULTILINE)


@driver("mlx5.speed")
def ethernet_speed(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Fix the link at one speed; revert to negotiation, or to the fixed speed before."""
    dev = target.interface.netdev
    text = run(("ethtool", dev), None)
    requested_mbps, current_mbps = int(request.choice("speed").removesuffix("G")) * 1000, _speed_mbps(text)
    if requested_mbps >= current_mbps:
        raise UnhealthyError(
            f"{request.where} runs at {current_mbps} Mb/s, no more than {requested_mbps}; ask for a lower speed"
        )
    if f"{requested_mbps}base" not in " ".join(_modes(text, "Supported link modes")):
        raise UnhealthyError(f"{request.where} does not support {requested_mbps} Mb/s; see `ethtool {dev}`")
    slower = Run(("ethtool", "-s", dev, "speed", f"{requested_mbps}", "autoneg", "off"))
    return Plan((f"link of {dev}",), (slower,), (Run(("ethtool", "-s", dev, *_restore(request, text, current_mbps))),))


def _restore(request: FaultRequest, text: str, found_mbps: int) -> tuple[str, ...]:
    if "Auto-negotiation: on" not in text:
        return ("speed", f"{found_mbps}", "autoneg", "off")
    if _modes(text, "Advertised link modes") != _modes(text, "Supported link modes"):
        raise UnhealthyError(
            f"{request.where} advertises fewer link modes than it supports, which cannot be restored exactly; "
            "advertise all of them"
        )
    return ("autoneg", "on")


def _speed_mbps(text: str) -> int:
    match = re.search(r"Speed: (\d{1,9})Mb/s", text)
    if match is None:
        raise UnhealthyError("ethtool reports no speed; check that the link is up")
    return int(match[1])


def _modes(text: str, title: str) -> list[str]:
    """The link modes after a title: on the rest of its line, and on the indented lines below it."""
    _, _, rest = text.partition(f"{title}:")
    listed: list[str] = []
    for line in rest.splitlines():
        modes = _MODE.findall(line)
        if listed and not modes:
            break
        listed += modes
    return listed


@driver("mlx5.qos")
def qos(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Limit one traffic class in hardware. The tool sets all eight limits at once, so all eight are restored."""
    dev = target.interface.netdev
    limits = limits_gbps(run(("mlnx_qos", "-i", dev), None))
    number, limit = int(request.number("traffic_class")), request.number("fraction") * _rate_bps(request) / 1e9
    limited = [limit if index == number else old for index, old in enumerate(limits)]
    commands = [
        Run(("mlnx_qos", "-i", dev, "-r", ",".join(f"{rate:g}" for rate in rates))) for rates in (limited, limits)
    ]
    return Plan((f"traffic classes of {dev}",), (commands[0],), (commands[1],))


def _rate_bps(request: FaultRequest) -> float:
    if request.nic is None or not request.nic.rate_bps:
        raise UnhealthyError(f"the inventory has no rate of {request.where}; add it, such as rate: 100gbit")
    return request.nic.rate_bps


def limits_gbps(text: str) -> list[float]:
    """The rate limit of each traffic class, Gbit/s, 0 for none. Raises UnhealthyError when not all eight are there."""
    limits = {
        int(number): 0.0 if limit == "unlimited" else float(value) / (1000 if unit == "Mbps" else 1)
        for number, limit, value, unit in _LIMIT.findall(text)
    }
    if sorted(limits) != list(range(_CLASSES)):
        raise UnhealthyError(
            f"mlnx_qos lists the limits of {len(limits)} traffic classes, not {_CLASSES}; is its version supported?"
        )
    return [limits[number] for number in range(_CLASSES)]


# Speed names of four lanes, by link rate (InfiniBand 4x).
_SPEEDS = {"10G": "SDR", "40G": "QDR", "100G": "EDR", "200G": "HDR"}
_ENABLED = re.compile(r"Enabled Link Speed\s*:\s*0x[0-9a-f]+\s*\(([^)]*)\)")


@driver("infiniband.speed")
def infiniband_speed(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Enable one speed only and retrain the link; revert to the speeds enabled before and retrain."""
    device = target.interface.device
    requested = _SPEEDS.get(request.choice("speed"))
    enabled = enabled_speeds(run(("mlxlink", "-d", device), None))
    if requested not in enabled:
        raise UnhealthyError(
            f"{request.where} has {', '.join(enabled)} enabled, not {request.choice('speed')}; choose an enabled speed"
        )
    commands = [
        Run(("mlxlink", "-d", device, "--speeds", ",".join(speeds), "--port_state", "TG"))
        for speeds in ([requested], enabled)
    ]
    return Plan((f"link of {device}",), (commands[0],), (commands[1],))


def enabled_speeds(text: str) -> list[str]:
    """The speeds that the port may negotiate. Raises UnhealthyError when mlxlink does not list them."""
    match = _ENABLED.search(text)
    if match is None:
        raise UnhealthyError("mlxlink lists no enabled speeds; check that this is an InfiniBand port")
    return [word.strip() for word in match[1].split(",")]


# Link Control 2, whose low four bits are the target speed, and Link Control, whose bit 5 retrains the link.
_TARGET, _SPEED_BITS = "CAP_EXP+30.w", 0xF
_RETRAIN = "CAP_EXP+10.w=20:20"


@driver("pcie.speed")
def pcie_speed(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Lower the target speed and retrain the link; the revert does the same with the speed before."""
    device = run(("readlink", "-f", f"/sys/class/infiniband/{target.interface.device}/device"), None).strip()
    above = device.split("/")[-2]
    printed = run(("setpci", "-s", above, _TARGET), None).strip()
    with decoding():
        current = int(printed, 16)
    requested = int(request.number("generation"))
    if requested >= current & _SPEED_BITS:
        raise UnhealthyError(f"{request.where} runs at generation {current & _SPEED_BITS} at most; ask for a lower one")
    commands = [
        (
            Run(("setpci", "-s", above, f"{_TARGET}={value & _SPEED_BITS:x}:{_SPEED_BITS:x}")),
            Run(("setpci", "-s", above, _RETRAIN)),
        )
        for value in (requested, current)
    ]
    return Plan((f"PCIe link of {above}",), commands[0], commands[1])
