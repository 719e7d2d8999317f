"""What a host says about a NIC: its links, queueing, routes and neighbours, listed so that before and after compare."""

import json
import math
import socket
from pathlib import Path
from typing import Any

import msgspec

from c4bench import namespaces
from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject.actions import run
from c4bench.model.fabric import Nic

_INFINIBAND = Path("/sys/class/infiniband")
# The kernel counts a shaper's burst in ticks of 64 ns at its rate, and lists it so.
_TICK_S = 64e-9
_LIST = {
    "address": "ip -json address show dev {}",
    "qdisc": "tc -raw -json qdisc show dev {}",
    "class": "tc -raw class show dev {}",
    "route": "ip -4 route show table all dev {}",
    "route6": "ip -6 route show table all dev {}",
    "neighbour": "ip neighbour show dev {} nud permanent",
}
# Count down, or say only how far duplicate address detection has come.
_VOLATILE = ("valid_life_time", "preferred_life_time", "tentative")


class Shaper(msgspec.Struct, frozen=True):
    """A token bucket filter: what `tc` must be told to have it again."""

    rate_bps: float
    burst_bytes: int
    limit_bytes: int

    @property
    def words(self) -> tuple[str, ...]:
        """`tbf rate ... burst ... limit ...`."""
        return (
            "tbf",
            "rate",
            f"{self.rate_bps:.0f}bit",
            "burst",
            f"{self.burst_bytes}",
            "limit",
            f"{self.limit_bytes}",
        )


class NicTarget(msgspec.Struct, frozen=True):
    """A NIC as found. `listing` holds what each tool printed, by section."""

    nic: Nic
    index: int
    listing: dict[str, str]

    @property
    def ifb(self) -> str:
        """The intermediate device that faults on what this NIC receives may make."""
        return ifb_name(self.index)

    def qdiscs(self) -> list[dict[str, Any]]:
        """Its queueing disciplines, as `tc -json` has them."""
        found: list[dict[str, Any]] = json.loads(self.listing["qdisc"])
        return found

    @property
    def root(self) -> dict[str, Any]:
        """The root queueing discipline; a NIC that is down may list none."""
        return next((qdisc for qdisc in self.qdiscs() if qdisc.get("root")), {"kind": "noop", "handle": "0:"})

    def shaper(self) -> Shaper | None:
        """The root, when it is a token bucket that can be told again exactly; None for any other kind."""
        options = self.root.get("options", {})
        if self.root["kind"] != "tbf" or "peakrate" in options:
            return None
        return Shaper(options["rate"] * 8.0, _burst_bytes(options), options["limit"])

    def links(self) -> list[dict[str, Any]]:
        """Its link and addresses, as `ip -json` has them: one entry."""
        found: list[dict[str, Any]] = json.loads(self.listing["address"])
        return found

    def lines(self, section: str) -> list[list[str]]:
        """A textual section, as words."""
        return [line.split() for line in self.listing[section].splitlines()]


def hardware(nic: Nic) -> str:
    """What carries the NIC's traffic: `rxe`, `ethernet` (no RDMA), or the kernel driver's name such as `mlx5_core`.

    Raises UnhealthyError when the host has no such RDMA device.
    """
    if not nic.device:
        return "ethernet"
    device = _INFINIBAND / nic.device
    if not device.exists():
        raise UnhealthyError(f"{nic.name}: this host has no RDMA device {nic.device}; see `rdma link`")
    if (device / "parent").exists():
        return "rxe"
    return (device / "device" / "driver").resolve().name


def index_of(nic: Nic) -> int:
    """The interface index. Raises UsageError when the NIC's interface or namespace is not on this host."""
    try:
        with namespaces.network(nic.netns):
            return socket.if_nametoindex(nic.netdev)
    except OSError:
        where = f" in {nic.netns}" if nic.netns else ""
        raise UsageError(f"{nic.name}: this host has no interface {nic.netdev}{where}; see `ip link`") from None


def ifb_name(index: int) -> str:
    """Unique by interface, and short enough whatever the NIC is called."""
    return f"c4ifb{index}"


def examine(nic: Nic) -> NicTarget:
    """The NIC with everything a fault may disturb. Raises UsageError when it is not there."""
    return NicTarget(nic, index_of(nic), listing(nic))


def listing(nic: Nic) -> dict[str, str]:
    """Everything a fault may disturb, one text a section; equal texts mean an equal state."""
    found = {name: run(tuple(command.format(nic.netdev).split()), nic.netns) for name, command in _LIST.items()}
    found["address"] = json.dumps(_steady(json.loads(found["address"])))
    if any(qdisc["kind"] in {"ingress", "clsact"} for qdisc in json.loads(found["qdisc"])):
        found["filter"] = run(("tc", "-json", "filter", "show", "dev", nic.netdev, "ingress"), nic.netns)
    return found


def difference(before: dict[str, str], after: dict[str, str]) -> tuple[str, ...]:
    """What is no longer as it was, a line each: `- ` lost, `+ ` left over."""
    found = []
    for section in sorted(before.keys() | after.keys()):
        old, new = (side.get(section, "").splitlines() for side in (before, after))
        if old != new:
            found += [f"- {section}: {line}" for line in old if line not in new]
            found += [f"+ {section}: {line}" for line in new if line not in old]
            found += [f"~ {section}: in another order"] if sorted(old) == sorted(new) else []
    return tuple(found)


def _steady(value: Any) -> Any:  # noqa: ANN401  (JSON)
    if isinstance(value, list):
        return [_steady(item) for item in value]
    if isinstance(value, dict):
        return {key: _steady(item) for key, item in value.items() if key not in _VOLATILE}
    return value


def _burst_bytes(options: dict[str, Any]) -> int:
    """A burst that lists as the given one does: whole KiB, as people write it, where one fits."""
    ticks, rate = int(options["burst_raw"], 16), int(options["rate"])
    low, high = math.ceil(ticks * _TICK_S * rate), math.ceil((ticks + 1) * _TICK_S * rate) - 1
    whole = high // 1024 * 1024
    return whole if whole >= low else (low + high) // 2
