"""Counters a NIC keeps by itself, from sysfs."""

from contextlib import suppress
from pathlib import Path

SYSFS = Path("/sys/class")
# The kernel serves hardware counters from a cache this old at most; two readings closer than that may be the same one.
CACHE_S = 0.02


def hardware_counters(device: str, port: int = 1, sysfs: Path = SYSFS) -> dict[str, int]:
    """The port's and the device's `hw_counters` by name. Empty where the driver has none."""
    base = sysfs / "infiniband" / device
    found = _read_all(base / "hw_counters")
    found.update(_read_all(base / "ports" / str(port) / "hw_counters"))
    found.pop("lifespan", None)
    return found


def port_counters(device: str, port: int = 1, sysfs: Path = SYSFS) -> dict[str, int]:
    """The standard `counters` of a port, by name; those in words (`port_xmit_data`) are as the kernel gives them."""
    return _read_all(sysfs / "infiniband" / device / "ports" / str(port) / "counters")


def netdev_statistics(netdev: str, sysfs: Path = SYSFS) -> dict[str, int]:
    """`statistics` of a network interface, by name: `tx_bytes`, `rx_dropped` and so on."""
    return _read_all(sysfs / "net" / netdev / "statistics")


def difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """What changed from `before` to `after`, by name; a counter that appeared counts from 0."""
    changes = {name: value - before.get(name, 0) for name, value in after.items()}
    return {name: change for name, change in changes.items() if change}


def _read_all(folder: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    if folder.is_dir():
        for entry in sorted(folder.iterdir()):
            # Some counters of some drivers cannot be read, or not as numbers.
            with suppress(OSError, ValueError):
                found[entry.name] = int(entry.read_text())
    return found
