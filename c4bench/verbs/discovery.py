"""Which RDMA ports this host has, from sysfs."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from c4bench.errors import UnhealthyError
from c4bench.verbs.addressing import ETHERNET, IB, ROCE_V1, ROCE_V2, Gid
from c4bench.verbs.counters import SYSFS
from c4bench.verbs.errors import VerbsError

# What the kernel says of GIDs that are not RoCE v2, on either link layer.
_OLDER = "IB/RoCE v1"
_UNUSED = "0000:0000:0000:0000:0000:0000:0000:0000"


class RdmaPort(NamedTuple):
    """A port of an RDMA device. `netdev` is empty where there is none in reach; `active_mtu_bytes` 0 where unknown."""

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
        """The IP addresses it can be reached at: those of its RoCE v2 GIDs, or its GIDs on InfiniBand."""
        return tuple(gid.address for gid in self.gids if gid.kind in {ROCE_V2, IB})


def ask_mtu(device: str, port: int) -> int:
    """The active MTU as verbs give it, which sysfs does not; 0 where the device cannot be opened."""
    with suppress(ImportError, VerbsError):
        from c4bench.verbs.device import active_mtu_bytes  # noqa: PLC0415  (discovery works without pyverbs)

        return active_mtu_bytes(device, port)
    return 0


def discover(sysfs: Path = SYSFS, active_mtu: Callable[[str, int], int] = ask_mtu) -> list[RdmaPort]:
    """Every port of every RDMA device, by name."""
    return [
        _read_port(device.name, int(port.name), port, active_mtu)
        for device in _entries(sysfs / "infiniband")
        for port in _entries(device / "ports")
    ]


def find(ports: Iterable[RdmaPort], *, netdev: str = "", address: str = "") -> RdmaPort:
    """The port of a network interface, of an IP address, or of both. UnhealthyError, which says what there is."""
    there = list(ports)
    for port in there:
        if (not netdev or port.netdev == netdev) and (not address or address in port.addresses):
            return port
    wanted = " and ".join(filter(None, [netdev and f"netdev {netdev}", address and f"address {address}"]))
    known = "; ".join(f"{port.device}/{port.port} on {port.netdev}: {', '.join(port.addresses)}" for port in there)
    raise UnhealthyError(f"no RDMA port has {wanted}; there are: {known or 'none'}")


def netdev_of(device: str, port: int = 1, sysfs: Path = SYSFS) -> str:
    """The network interface of a port, empty where there is none in reach."""
    return next((gid.netdev for gid in _read_gids(sysfs / "infiniband" / device / "ports" / str(port), "")), "")


def _read_port(device: str, number: int, folder: Path, active_mtu: Callable[[str, int], int]) -> RdmaPort:
    link_layer = _read(folder / "link_layer")
    gids = tuple(_read_gids(folder, link_layer))
    return RdmaPort(
        device=device,
        port=number,
        link_layer=link_layer,
        # As in "4: ACTIVE".
        state=_read(folder / "state").rpartition(" ")[2],
        netdev=next((gid.netdev for gid in gids if gid.netdev), ""),
        lid=int(_read(folder / "lid") or "0", 0),
        lmc=int(_read(folder / "lid_mask_count") or "0", 0),
        gids=gids,
        active_mtu_bytes=active_mtu(device, number),
    )


def _read_gids(folder: Path, link_layer: str) -> Iterator[Gid]:
    older = ROCE_V1 if link_layer == ETHERNET else IB
    for entry in sorted(_entries(folder / "gids"), key=lambda entry: int(entry.name)):
        text = _read(entry)
        # The type of an entry that is not in use cannot be read.
        kind = _read(folder / "gid_attrs" / "types" / entry.name)
        if kind and text != _UNUSED:
            netdev = _read(folder / "gid_attrs" / "ndevs" / entry.name)
            yield Gid(int(entry.name), text, older if kind == _OLDER else kind, netdev)


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return ""
