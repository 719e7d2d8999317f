"""Discover this host's RDMA ports from sysfs."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from c4bench.errors import UnhealthyError
from c4bench.verbs.addressing import IB, ROCE_V2, Gid
from c4bench.verbs.counters import SYSFS
from c4bench.verbs.errors import VerbsError
from c4bench.verbs.sysfs import entries, read, read_gids


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


def ask_mtu(device: str, port: int) -> int:
    """The active MTU from verbs, since sysfs has none; 0 if the device cannot be opened."""
    with suppress(ImportError, VerbsError):
        from c4bench.verbs.device import active_mtu_bytes  # noqa: PLC0415  (discovery works without pyverbs)

        return active_mtu_bytes(device, port)
    return 0


def discover(sysfs: Path = SYSFS, active_mtu: Callable[[str, int], int] = ask_mtu) -> list[RdmaPort]:
    """Every port of every RDMA device, by name."""
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
