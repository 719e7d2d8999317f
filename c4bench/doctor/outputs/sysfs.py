"""Files of /sys on a host, as `grep -H . PATHS` prints them: congestion control, GIDs, fixed traffic classes, MTU."""

import ipaddress
import re
from collections import defaultdict
from collections.abc import Iterator

from c4bench.doctor.facts import CongestionControl, Fact, FixedClass, Gid, Interface
from c4bench.doctor.look import forced_class
from c4bench.doctor.outputs.layout import About, whole_in

FILES = re.compile(r"^/sys/class/(?:net|infiniband)/[^/\s]+/\S+?:.", re.MULTILINE)
# What a host is asked for. GIDs that are not in use are all zeros.
COMMAND = (
    "sh",
    "-c",
    "cd /sys/class; grep -sH . $PWD/net/*/ecn/roce_*/enable/* $PWD/infiniband/*/tc/1/traffic_class "
    "$PWD/infiniband/*/ports/*/gid_attrs/types/*; grep -sH '[1-9a-f]' $PWD/infiniband/*/ports/*/gids/*; true",
)
_ENABLED = re.compile(r"^/sys/class/net/([^/\s]+)/ecn/roce_(np|rp)/enable/([0-7]):([01])\s*$", re.MULTILINE)
_CLASS = re.compile(r"^/sys/class/infiniband/([^/\s]+)/tc/1/traffic_class:(.*)$", re.MULTILINE)
_MTU = re.compile(r"^/sys/class/net/([^/\s]+)/mtu:(\d{2,6})\s*$", re.MULTILINE)
_PORT = r"^/sys/class/infiniband/([^/\s]+)/ports/(\d{1,3})"
_GID = re.compile(_PORT + r"/gids/(\d{1,4}):([0-9a-f:]{15,40})\s*$", re.MULTILINE)
_TYPE = re.compile(_PORT + r"/gid_attrs/types/(\d{1,4}):(.+)$", re.MULTILINE)
_VERSIONS = {"IB/RoCE v1": "v1", "RoCE v2": "v2"}


def files(text: str, _: About) -> Iterator[Fact]:
    """The settings in these files. A GID without a type is left out."""
    enabled: dict[str, dict[str, set[int]]] = defaultdict(lambda: {"np": set(), "rp": set()})
    for name, end, priority, on in _ENABLED.findall(text):
        own = enabled[name][end]
        own.update({int(priority)} if on == "1" else ())
    for name, ends in enabled.items():
        yield CongestionControl(name, tuple(sorted(ends["np"] & ends["rp"])))
    for device, value in _CLASS.findall(text):
        number = forced_class(value)
        if number is not None:
            yield FixedClass(device, number)
    for name, mtu in _MTU.findall(text):
        yield Interface(name, mtu_bytes=whole_in(mtu))
    yield from _gids(text)


def _gids(text: str) -> Iterator[Fact]:
    types = {(device, port, index): value.strip() for device, port, index, value in _TYPE.findall(text)}
    for device, port, index, gid in _GID.findall(text):
        version = _VERSIONS.get(types.get((device, port, index), ""))
        if version and gid.strip("0:"):
            yield Gid(device, int(port), int(index), _ipv4(gid), version)


def _ipv4(gid: str) -> str:
    """The IPv4 address that a GID is mapped from, "" for none."""
    try:
        mapped = ipaddress.IPv6Address(gid).ipv4_mapped
    except ValueError:
        return ""
    return str(mapped) if mapped else ""
