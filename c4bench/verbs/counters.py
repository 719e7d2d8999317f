"""A NIC's counters, from sysfs."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from c4bench.model.telemetry import COUNTERS, NicRecord

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


_Source = Mapping[str, Mapping[str, tuple[str, ...]]]  # names by driver and kind
# By source: the driver's `hw_counters`. Several names of one driver count different events, which are added; rxe's
# completer_retry_err counts both kinds.
_HARDWARE: _Source = {
    "mlx5": {
        "retransmits": ("local_ack_timeout_err", "packet_seq_err", "implied_nak_seq_err"),
        "out_of_sequence": ("out_of_sequence",),
        "duplicates": ("duplicate_request",),
        "cnp_sent": ("np_cnp_sent",),
        "cnp_received": ("rp_cnp_handled", "rp_cnp_ignored"),
        "ecn_marked": ("np_ecn_marked_roce_packets",),
    },
    "bnxt_re": {
        "retransmits": ("to_retransmits", "seq_err_naks_rcvd"),
        "out_of_sequence": ("oos_drop_count",),
        "duplicates": ("dup_req",),
        "cnp_sent": ("tx_cnp_pkts",),
        "cnp_received": ("rx_cnp_pkts",),
        "ecn_marked": ("rx_ecn_marked_pkts",),
    },
    "irdma": {
        "cnp_sent": ("cnpSent",),
        "cnp_received": ("cnpHandled", "cnpIgnored"),
        "ecn_marked": ("RxECNMrkd",),
    },
    "rxe": {
        "retransmits": ("completer_retry_err",),
        "out_of_sequence": ("out_of_seq_request",),
        "duplicates": ("duplicate_request",),
        # rxe does not look at the mark: the IP layer of its host counts the packet before (`IP_ECN_MARKED`).
        "ecn_marked": ("InCEPkts",),
    },
}
# By source: what the driver of the port's network interface counts (`ethtool -S`); `{}` is each of the priorities.
_ETHERNET: _Source = {
    "mlx5_core": {
        "pause_sent": ("tx_prio{}_pause", "tx_global_pause"),
        "pause_received": ("rx_prio{}_pause", "rx_global_pause"),
        "pause_sent_us": ("tx_prio{}_pause_duration", "tx_global_pause_duration"),
        "pause_received_us": ("rx_prio{}_pause_duration", "rx_global_pause_duration"),
    },
    "bnxt_en": {
        "pause_sent": ("tx_pfc_ena_frames_pri{}", "tx_pause_frames"),
        "pause_received": ("rx_pfc_ena_frames_pri{}", "rx_pause_frames"),
        "pause_sent_us": ("pfc_pri{}_tx_duration_us",),
        "pause_received_us": ("pfc_pri{}_rx_duration_us",),
    },
    "ice": {
        "pause_sent": ("tx_priority_{}_xoff.nic", "link_xoff_tx.nic"),
        "pause_received": ("rx_priority_{}_xoff.nic", "link_xoff_rx.nic"),
    },
}
_PRIORITIES = range(8)
# Packets of the network namespace that IP received with a mark, of `/proc/net/netstat`.
IP_ECN_MARKED = "InCEPkts"


def _by_kind(*sources: _Source) -> dict[str, frozenset[str]]:
    """All sources' names of each kind."""
    names: dict[str, set[str]] = {kind: set() for kind in COUNTERS}
    for kinds in (kinds for source in sources for kinds in source.values()):
        for kind, patterns in kinds.items():
            names[kind] |= {pattern.format(number) for pattern in patterns for number in _PRIORITIES}
    return {kind: frozenset(found) for kind, found in names.items()}


_COUNTED_AS = _by_kind(_HARDWARE, _ETHERNET)
COUNTED = frozenset(name for names in _by_kind(_HARDWARE).values() for name in names) - {IP_ECN_MARKED}
ETHERNET_COUNTED = frozenset(name for names in _by_kind(_ETHERNET).values() for name in names)


def nic_record(nic: str, state: str, counters: Mapping[str, int]) -> NicRecord:
    """The record of a NIC with the counters of its device and of its network interfaces, by the drivers' names."""
    by_kind = {kind: [counters[name] for name in counters.keys() & names] for kind, names in _COUNTED_AS.items()}
    return NicRecord(nic, state, **{kind: sum(values) for kind, values in by_kind.items() if values})


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
