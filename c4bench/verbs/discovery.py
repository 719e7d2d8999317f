"""The RDMA ports of a host, their GIDs and their network interfaces, as its sysfs has them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from c4bench.errors import UnhealthyError
from c4bench.verbs.addressing import ETHERNET, IB, ROCE_V1, ROCE_V2, Gid
from c4bench.verbs.counters import SYSFS

# The kernel's type of GIDs that are not RoCE v2, on either link layer.
_OLDER = "IB/RoCE v1"
_UNUSED = "0000:0000:0000:0000:0000:0000:0000:0000"


def netdev_of(device: str, port: int = 1, sysfs: Path = SYSFS) -> str:
    """The network interface of a port; empty if none is in this namespace."""
    return next((gid.netdev for gid in read_gids(sysfs / "infiniband" / device / "ports" / str(port), "")), "")


def read_gids(folder: Path, link_layer: str) -> Iterator[Gid]:
    """The GIDs in use of the port whose folder this is, in order."""
    older = ROCE_V1 if link_layer == ETHERNET else IB
    for entry in sorted(entries(folder / "gids"), key=lambda entry: int(entry.name)):
        text = read(entry)
        # The type of an unused entry cannot be read.
        kind = read(folder / "gid_attrs" / "types" / entry.name)
        if kind and text != _UNUSED:
            netdev = read(folder / "gid_attrs" / "ndevs" / entry.name)
            yield Gid(int(entry.name), text, older if kind == _OLDER else kind, netdev)


def entries(folder: Path) -> list[Path]:
    """The entries of a folder by name, none if it does not exist."""
    return sorted(folder.iterdir()) if folder.is_dir() else []


def read(path: Path) -> str:
    """The text of a kernel file, empty if it cannot be read."""
    with suppress(OSError):
        return path.read_text().strip()
    return ""


class RdmaPort(NamedTuple):
    """A port of an RDMA device. `netdev` is empty if none is in this namespace; `active_mtu_bytes` is 0 if unknown."""

    device: str
    port: int
    link_layer: str
    state: str
    netdev: str
    lid: int
    lmc: int
    gids: tuple[Gid, ...]
    active_mtu_bytes: int

    @property
    def addresses(self) -> tuple[str, ...]:
        """The IP addresses of its RoCE v2 GIDs, or its GIDs on InfiniBand."""
        return tuple(gid.address for gid in self.gids if gid.kind in {ROCE_V2, IB})


def discover(sysfs: Path, active_mtu: Callable[[str, int], int]) -> list[RdmaPort]:
    """Every port of every RDMA device, by name; sysfs has no MTU, so `active_mtu` gives that of a device's port."""
    return [
        _read_port(device.name, int(port.name), port, active_mtu)
        for device in entries(sysfs / "infiniband")
        for port in entries(device / "ports")
    ]


def find(ports: Iterable[RdmaPort], *, netdev: str = "", address: str = "") -> RdmaPort:
    """The port with this network interface, IP address, or both. Raises UnhealthyError, which lists the ports."""
    known = list(ports)
    for port in known:
        if (not netdev or port.netdev == netdev) and (not address or address in port.addresses):
            return port
    criteria = " and ".join(filter(None, [netdev and f"netdev {netdev}", address and f"address {address}"]))
    listing = "; ".join(f"{port.device}/{port.port} on {port.netdev}: {', '.join(port.addresses)}" for port in known)
    raise UnhealthyError(f"no RDMA port has {criteria}; there are: {listing or 'none'}")


def _read_port(device: str, number: int, folder: Path, active_mtu: Callable[[str, int], int]) -> RdmaPort:
    link_layer = read(folder / "link_layer")
    gids = tuple(read_gids(folder, link_layer))
    return RdmaPort(
        device=device,
        port=number,
        link_layer=link_layer,
        # The file has "4: ACTIVE", for example.
        state=read(folder / "state").rpartition(" ")[2],
        netdev=next((gid.netdev for gid in gids if gid.netdev), ""),
        lid=int(read(folder / "lid") or "0", 0),
        lmc=int(read(folder / "lid_mask_count") or "0", 0),
        gids=gids,
        active_mtu_bytes=active_mtu(device, number),
    )
