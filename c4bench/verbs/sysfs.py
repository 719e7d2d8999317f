"""Read the GIDs and the network interface of RDMA ports from sysfs."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from c4bench.verbs.addressing import ETHERNET, IB, ROCE_V1, Gid
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
