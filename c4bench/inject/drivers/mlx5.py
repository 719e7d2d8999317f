"""ConnectX NICs: link speed by `ethtool`, rate by `mlnx_qos`. `tc` does not affect what the hardware sends."""

import re

from c4bench.errors import UnhealthyError
from c4bench.inject.actions import Plan, Run, run
from c4bench.inject.interfaces import InterfaceTarget
from c4bench.inject.registry import driver
from c4bench.model.fault import FaultRequest

_CLASSES = 8
_MODE = re.compile(r"\d+base\S+/\S+")
_LIMIT = re.compile(r"^tc: (\d) ratelimit: (unlimited|(\d+(?:\.\d+)?) (Gbps|Mbps))", re.MULTILINE)


@driver("mlx5.speed")
def speed(request: FaultRequest, target: InterfaceTarget) -> Plan:
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
