"""COUNTERS_DB from the kernel's counters: `/proc/net/dev` for ports, `tc` for rules and queues.

Object identifiers are made up, of SAI's form: ports begin with 0x1000, queues with 0x1500.
"""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from c4bench.lab.guest import flow_control
from c4bench.lab.guest.flow_control import PriorityCounts
from c4bench.lab.twin.forwarding import FIRST_PREFERENCE, PortState, Stage
from c4bench.lab.twin.ports import Layout

_DEV = Path("/proc/net/dev")
# Columns of /proc/net/dev, without the name.
_RX_BYTES, _RX_PACKETS, _RX_ERRORS, _RX_DROPPED = 0, 1, 2, 3
_TX_BYTES, _TX_PACKETS, _TX_ERRORS, _TX_DROPPED = 8, 9, 10, 11
_HEADER_LINES = 2
PRIORITIES = range(8)

Counts = dict[str, int]


def port_oid(index: int) -> str:
    """The object identifier of a port by its index."""
    return f"oid:0x{0x1000000000000 + index:x}"


def queue_oid(index: int, queue: int) -> str:
    """The object identifier of a port's queue."""
    return f"oid:0x{0x15000000000000 + (index << 8) + queue:x}"


def read_ports(text: str) -> dict[str, Counts]:
    """The port counters of SAI by interface, from the text of /proc/net/dev."""
    found = {}
    for line in text.splitlines()[_HEADER_LINES:]:
        name, _, rest = line.partition(":")
        columns = [int(word) for word in rest.split()]
        found[name.strip()] = {
            "SAI_PORT_STAT_IF_IN_OCTETS": columns[_RX_BYTES],
            "SAI_PORT_STAT_IF_IN_UCAST_PKTS": columns[_RX_PACKETS],
            "SAI_PORT_STAT_IF_IN_ERRORS": columns[_RX_ERRORS],
            "SAI_PORT_STAT_IF_IN_DISCARDS": columns[_RX_DROPPED],
            "SAI_PORT_STAT_IF_OUT_OCTETS": columns[_TX_BYTES],
            "SAI_PORT_STAT_IF_OUT_UCAST_PKTS": columns[_TX_PACKETS],
            "SAI_PORT_STAT_IF_OUT_ERRORS": columns[_TX_ERRORS],
            "SAI_PORT_STAT_IF_OUT_DISCARDS": columns[_TX_DROPPED],
        }
    return found


class PortCounters:
    """Counts since the first reading, and rates between readings."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._first: dict[str, Counts] = {}
        self._before: dict[str, Counts] = {}
        self._before_s = 0.0

    def read(self, now_s: float) -> tuple[dict[str, Counts], dict[str, dict[str, float]]]:
        """By port the counts, and the rates since the reading before, bytes/s and packets/s."""
        kernel = read_ports(_DEV.read_text())
        self._first = self._first or kernel
        counts = {
            port.name: {field: value - self._first[port.name][field] for field, value in kernel[port.name].items()}
            for port in self._layout.ports
        }
        apart_s = now_s - self._before_s
        before, self._before, self._before_s = self._before, counts, now_s
        return counts, {port: _rates(before[port], own, apart_s) for port, own in counts.items() if port in before}


_RATES = (
    ("RX_BPS", "SAI_PORT_STAT_IF_IN_OCTETS"),
    ("RX_PPS", "SAI_PORT_STAT_IF_IN_UCAST_PKTS"),
    ("TX_BPS", "SAI_PORT_STAT_IF_OUT_OCTETS"),
    ("TX_PPS", "SAI_PORT_STAT_IF_OUT_UCAST_PKTS"),
)


def _rates(before: Counts, after: Counts, apart_s: float) -> dict[str, float]:
    return {rate: (after[field] - before[field]) / apart_s for rate, field in _RATES}


# Counters of SAI that the lab's ports do not have: they count multicast (LLDP) as unicast, and there is no FEC.
ABSENT: Mapping[str, str] = {
    "SAI_PORT_STAT_IF_IN_NON_UCAST_PKTS": "0",
    "SAI_PORT_STAT_IF_OUT_NON_UCAST_PKTS": "0",
    "SAI_PORT_STAT_IN_PKTS_RX_OVERRUN": "0",
}


def priority_counts(layout: Layout) -> Mapping[str, Sequence[PriorityCounts]]:
    """What each port has counted of each priority; nothing where the lab's ports have no flow control."""
    if not any(port.cable.pfc for port in layout.ports):
        return {}
    return flow_control.counts(flow_control.FILE.read_text())


def pauses(of_priorities: Sequence[PriorityCounts]) -> Counts:
    """The pause frames of a port, as SAI counts them."""
    return {
        f"SAI_PORT_STAT_PFC_{priority}_{way}_PKTS": getattr(own, f"{way.lower()}_pause")
        for priority, own in enumerate(of_priorities)
        for way in ("RX", "TX")
    }


def queue(own: PriorityCounts) -> dict[str, object]:
    """A queue's counters, with those of its watchdog."""
    return {
        "SAI_QUEUE_STAT_PACKETS": own.packets,
        "SAI_QUEUE_STAT_BYTES": own.bytes,
        "SAI_QUEUE_STAT_DROPPED_PACKETS": own.dropped,
        "PFC_WD_STATUS": "stormed" if own.storm else "operational",
        "PFC_WD_QUEUE_STATS_DEADLOCK_DETECTED": own.detected,
        "PFC_WD_QUEUE_STATS_DEADLOCK_RESTORED": own.restored,
    }


class _Statistics(msgspec.Struct, frozen=True):
    bytes: int = 0
    packets: int = 0
    drops: int = 0


class _Action(msgspec.Struct, frozen=True):
    stats: _Statistics = _Statistics()


class _Options(msgspec.Struct, frozen=True):
    actions: tuple[_Action, ...] = ()


class _Filter(msgspec.Struct, frozen=True):
    pref: int = 0
    options: _Options = _Options()


def rule_counts(states: Mapping[str, PortState]) -> dict[str, tuple[int, int]]:
    """Packets and bytes that each rule (`TABLE:RULE`) has matched, on all its ports together."""
    found: dict[str, tuple[int, int]] = {}
    for port, state in states.items():
        for stage in dict.fromkeys(rule.stage for rule in state.rules):
            by_preference = {one.pref: one for one in _filters(port, stage) if one.options.actions}
            for preference, rule in enumerate(state.rules, FIRST_PREFERENCE):
                if rule.stage == stage and (one := by_preference.get(preference)):
                    key, stats = f"{rule.table}:{rule.name}", one.options.actions[0].stats
                    packets, size = found.get(key, (0, 0))
                    found[key] = packets + stats.packets, size + stats.bytes
    return found


def _filters(port: str, stage: Stage) -> Sequence[_Filter]:
    argv = ("tc", "-s", "-json", "filter", "show", "dev", port, stage)
    printed = subprocess.run(argv, capture_output=True, check=False).stdout
    return msgspec.json.decode(printed, type=list[_Filter]) if printed.strip() else []
