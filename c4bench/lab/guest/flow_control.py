"""Priority flow control of the lab's ports: their settings and counters, in `/proc/net/pfc` (see machine/sch_pfc.c).

The file is of the calling thread's network namespace: of a switch, or of the host whose NIC it is. Settings are of a
port, and stay when a fault or a reset replaces its queues.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import msgspec

from c4bench.lab.topology import FlowControl, Topology

FILE = Path("/proc/thread-self/net/pfc")
_SWITCH_ON = Path("/sys/module/sch_pfc/parameters/enabled")


def enable() -> None:
    """Have the kernel know flow control, as it does not from boot on. Needed once, before ports get queues."""
    _SWITCH_ON.write_text("1")


def queues(interface: str, parent: str) -> str:
    """The `tc` command that gives a port its queues, below its shaper or marker `parent`."""
    return f"qdisc replace dev {interface} parent {parent} pfc"


def settings(topology: Topology) -> dict[str, list[str]]:
    """The lines that set the ports of every switch and NIC, by namespace. Only switches have a watchdog."""
    lines: dict[str, list[str]] = defaultdict(list)
    if topology.pfc is None:
        return lines
    for link in (link for link in topology.links if link.pfc):
        for end in link.ends:
            lines[end.switch] += port_settings(end.interface, link.rate_bps, topology.pfc)
    for port in (port for port in topology.ports if port.pfc):
        lines[port.switch] += port_settings(port.interface, port.rate_bps, topology.pfc)
        own = msgspec.structs.replace(topology.pfc, watchdog_s=0.0)
        namespace, netdev = port.sender
        lines[namespace] += port_settings(netdev, port.rate_bps, own)
    return lines


def port_settings(interface: str, rate_bps: float, pfc: FlowControl) -> list[str]:
    """The lines that set one port."""
    watchdog_us = round(pfc.watchdog_s * 1e6)
    values = {
        "rate": round(rate_bps),
        "lossless": mask(pfc.priorities),
        "xoff": pfc.xoff_bytes,
        "xon": pfc.xon_bytes,
        "headroom": pfc.headroom_bytes,
        "limit": pfc.queue_bytes,
        "detect_us": watchdog_us,
        "restore_us": watchdog_us,
    }
    return [f"{interface} {name} {value}" for name, value in values.items()]


def forget(interface: str) -> list[str]:
    """The lines that take away what a NIC's driver has set: limits of priorities, and other priorities of DSCPs."""
    shapes = [f"{interface} shape {priority} 0" for priority in range(8)]
    return shapes + [f"{interface} dscp {dscp} {dscp // 8}" for dscp in range(64)]


def mask(priorities: Iterable[int]) -> int:
    """A bit for each of the priorities, as the kernel's file has them."""
    return sum(1 << priority for priority in set(priorities))


def write(lines: Iterable[str], file: Path = FILE) -> None:
    """Set ports. Raises OSError at the first line that the kernel refuses: an unknown port or setting, or a bound."""
    for line in lines:
        file.write_text(f"{line}\n")


class PriorityCounts(msgspec.Struct, frozen=True):
    """What a port has counted of one priority, since its interface was there.

    Pause frames received and sent, and for how long they have stopped this end and the other (us). Packets and bytes
    that it has sent; bytes that came in by it and are in the switch (`held`), and bytes in its queue; packets that were
    dropped. Whether its watchdog sees a storm now, how many it has detected, and of how many the end. The rate that
    limits the priority (bit/s), 0 for none.
    """

    rx_pause: int
    rx_pause_us: int
    tx_pause: int
    tx_pause_us: int
    packets: int
    bytes: int
    held: int
    queued: int
    dropped: int
    storm: int
    detected: int
    restored: int
    shape: int


def counts(text: str) -> dict[str, list[PriorityCounts]]:
    """The counts in the file's text by port, those of priority 0 first."""
    found: dict[str, list[PriorityCounts]] = defaultdict(list)
    for words in (line.split() for line in text.splitlines()):
        if words[1] == "priority":
            named = dict(zip(words[3::2], map(int, words[4::2]), strict=True))
            found[words[0]].append(msgspec.convert(named, PriorityCounts))
    return dict(found)
