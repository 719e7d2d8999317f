"""Which port of a Linux bond a RoCE v2 packet leaves by, as the kernel's driver chooses it."""

import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from c4bench.verbs.counters import SYSFS
from c4bench.verbs.probe import ROCE_PORT
from c4bench.verbs.sysfs import read

# The modes in which the hash chooses among all ports that are up.
_HASHING = ("balance-xor", "802.3ad")
_POLICY = "layer3+4"
_PCI = re.compile(r"[0-9a-f]+:[0-9a-f]{2}:[0-9a-f]{2}\.([0-7])")


class Bond(msgspec.Struct, frozen=True):
    """A bond's interfaces that are up, in the kernel's order, and why its hash cannot be told; "" if it can."""

    ports: tuple[str, ...]
    obstacle: str


def read_bond(netdev: str, sysfs: Path = SYSFS) -> Bond:
    """The bond of this name, or an obstacle if it is none (Documentation/networking/bonding of Linux)."""
    folder = sysfs / "net" / netdev / "bonding"
    if not netdev or not folder.is_dir():
        return Bond((), "it is no bond")
    mode, policy = (read(folder / name).partition(" ")[0] for name in ("mode", "xmit_hash_policy"))
    ports = read(folder / "slaves").split()
    up = tuple(port for port in ports if read(sysfs / "net" / port / "bonding_slave" / "mii_status") == "up")
    if mode not in _HASHING or policy != _POLICY:
        return Bond(up, f"bond {netdev} has mode {mode} and policy {policy}; set balance-xor or 802.3ad with {_POLICY}")
    return Bond(up, "" if up else f"no port of bond {netdev} is up")


def leaving_port(ports: Sequence[str], source: str, destination: str, source_port: int) -> str:
    """The port by which packets between these addresses leave: `bond_xmit_hash` of Linux's drivers/net/bonding.

    Addresses are IPv4, or IPv6 as GIDs have it, where IPv4 is mapped. ValueError for any other text.
    """
    mixed = source_port.to_bytes(2, "big") + ROCE_PORT.to_bytes(2, "big")
    words = [mixed, *_words(source), *_words(destination)]
    value = 0
    for word in words:
        value ^= int.from_bytes(word, "little")
    value ^= value >> 16
    value ^= value >> 8
    return ports[(value >> 1) % len(ports)]


def _words(address: str) -> list[bytes]:
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        parsed = parsed.ipv4_mapped or parsed
    return [parsed.packed[start : start + 4] for start in range(0, len(parsed.packed), 4)]


def pci_function(netdev: str, sysfs: Path = SYSFS) -> int | None:
    """The PCI function of an interface; None if it has none."""
    found = _PCI.fullmatch((sysfs / "net" / netdev / "device").resolve().name)
    return int(found[1]) if found else None
