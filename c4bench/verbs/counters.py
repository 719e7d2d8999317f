"""A NIC's counters, from sysfs."""

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

SYSFS = Path("/sys/class")
# The kernel caches hardware counters for this long; two readings closer together may be equal.
CACHE_S = 0.02


def hardware_counters(device: str, port: int = 1, sysfs: Path = SYSFS) -> dict[str, int]:
    """The `hw_counters` of the device and the port by name; empty if the driver has none."""
    base = sysfs / "infiniband" / device
    counters = _read_all(base / "hw_counters")
    counters.update(_read_all(base / "ports" / str(port) / "hw_counters"))
    counters.pop("lifespan", None)
    return counters


def port_counters(device: str, port: int = 1, sysfs: Path = SYSFS) -> dict[str, int]:
    """The standard `counters` of a port, by name; those in words (`port_xmit_data`) are as the kernel gives them."""
    return _read_all(sysfs / "infiniband" / device / "ports" / str(port) / "counters")


def netdev_statistics(netdev: str, sysfs: Path = SYSFS) -> dict[str, int]:
    """`statistics` of a network interface, by name: `tx_bytes`, `rx_dropped` and so on."""
    return _read_all(sysfs / "net" / netdev / "statistics")


class Congestion(NamedTuple):
    """A NIC's counters of losses and congestion, under the same names for all drivers; None if it has no such counter.

    `retransmits` counts retransmission events (expired timers and NAKs), not packets. `out_of_sequence` counts packets
    that arrived early, `duplicates` those that arrived again. Congestion notification packets and ECN marks are those
    of RoCE v2 (annex A17.9.3).
    """

    retransmits: int | None
    out_of_sequence: int | None
    duplicates: int | None
    cnp_sent: int | None
    cnp_received: int | None
    ecn_marked: int | None


# By driver: mlx5, bnxt_re, irdma, rxe. Several names of one driver count different events, which are added; rxe's
# completer_retry_err counts both kinds.
_COUNTED_AS = {
    "retransmits": (
        *("local_ack_timeout_err", "packet_seq_err", "implied_nak_seq_err"),
        *("to_retransmits", "seq_err_naks_rcvd"),
        *("completer_retry_err",),
    ),
    "out_of_sequence": ("out_of_sequence", "oos_drop_count", "out_of_seq_request"),
    "duplicates": ("duplicate_request", "dup_req"),
    "cnp_sent": ("np_cnp_sent", "tx_cnp_pkts", "cnpSent"),
    "cnp_received": ("rp_cnp_handled", "rp_cnp_ignored", "rx_cnp_pkts", "cnpHandled", "cnpIgnored"),
    "ecn_marked": ("np_ecn_marked_roce_packets", "rx_ecn_marked_pkts", "RxECNMrkd"),
}


COUNTED = frozenset(name for names in _COUNTED_AS.values() for name in names)


def congestion(counters: dict[str, int]) -> Congestion:
    """The congestion counters among `hardware_counters`."""
    by_kind = {kind: [counters[name] for name in names if name in counters] for kind, names in _COUNTED_AS.items()}
    return Congestion(**{kind: sum(values) if values else None for kind, values in by_kind.items()})


def difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """What changed from `before` to `after`, by name; a counter that appeared counts from 0."""
    changes = {name: value - before.get(name, 0) for name, value in after.items()}
    return {name: change for name, change in changes.items() if change}


def _read_all(folder: Path) -> dict[str, int]:
    counters: dict[str, int] = {}
    if folder.is_dir():
        for entry in sorted(folder.iterdir()):
            # Some drivers have counters that cannot be read, or are not numbers.
            with suppress(OSError, ValueError):
                counters[entry.name] = int(entry.read_text())
    return counters
