"""RDMA devices: `rdma link`, `rdma statistic`, `ibv_devinfo`, `ibstat` and `show_gids`."""

import re
from collections.abc import Iterator
from itertools import pairwise

from c4bench.doctor.counters import count_of
from c4bench.doctor.facts import Counters, Fact, Firmware, Gid, RdmaPort
from c4bench.doctor.outputs.layout import About, json_list, whole_in

LINK = re.compile(
    r"^(?:link[ \t]+|\d{1,6}(?:/\d{1,6})?:[ \t]+)(?P<device>[\w.-]+)/(?P<number>\d{1,4}):?\s+"
    r"(?P<rest>.*\bstate\s+\w+.*)$",
    re.MULTILINE,
)
LINK_JSON = re.compile(r'"physical_state"\s*:')
STATISTIC = re.compile(r"^link\s+(?P<device>[\w.-]+)/(?P<number>\d{1,4})\s+(?P<rest>\w+ \d+ .*)$", re.MULTILINE)
DEVINFO = re.compile(r"^hca_id:\s+\S+", re.MULTILINE)
IBSTAT = re.compile(r"^CA '([^']{1,64})'", re.MULTILINE)
GIDS = re.compile(r"^DEV\s+PORT\s+INDEX\s+GID", re.MULTILINE)
_GID = re.compile(
    r"^(?P<device>\S+)\s+(?P<number>\d{1,4})\s+(?P<index>\d{1,5})\s+(?P<gid>[0-9a-fA-F:]{15,40})"
    r"(?:\s+(?P<address>\d{1,3}(?:\.\d{1,3}){3}))?\s+(?P<version>v[12])(?:\s+(?P<netdev>\S+))?\s*$",
    re.MULTILINE,
)


def rdma_link(text: str, _: About) -> Iterator[Fact]:
    """Ports in `rdma link`, as text or as JSON (`rdma -j link`)."""
    for match in LINK.finditer(text):
        words = match["rest"].split()
        values = dict(pairwise(words))
        yield RdmaPort(
            match["device"],
            int(match["number"]),
            values.get("state", ""),
            values.get("physical_state", ""),
            values.get("netdev", ""),
        )
    for one in json_list(text) if not LINK.search(text) else ():
        values = {name: str(value) for name, value in one.items()}
        state, physical = values.get("state", ""), values.get("physical_state", "")
        number = whole_in(values.get("port", "1"))
        if state:
            yield RdmaPort(values.get("ifname", ""), number, state, physical, values.get("netdev", ""))


def rdma_statistic(text: str, _: About) -> Iterator[Fact]:
    """Counters of ports in `rdma statistic`."""
    for match in STATISTIC.finditer(text):
        words = match["rest"].split()
        counts = {
            name: count
            for name, value in zip(words[::2], words[1::2], strict=False)
            if (count := count_of(value)) is not None
        }
        yield Counters(f"{match['device']}/{match['number']}", counts)


def ibv_devinfo(text: str, _: About) -> Iterator[Fact]:
    """Devices and ports in `ibv_devinfo`, also with -v."""
    for block in _blocks(text, DEVINFO):
        device = block.partition(":")[2].split()[0]
        general, *ports = re.split(r"^[ \t]+port:\s+(?=\d)", block, flags=re.MULTILINE)
        values = _values(general)
        if values.get("fw_ver"):
            yield Firmware(device, values.get("board_id") or values.get("vendor_part_id", ""), values["fw_ver"])
        for port in ports:
            own = _values(port)
            yield RdmaPort(
                device,
                whole_in(port.split()[0]),
                own.get("state", "").removeprefix("PORT_").partition(" ")[0],
                own.get("phys_state", "").partition(" ")[0],
                rate=own.get("active_speed", "").partition("(")[0].strip(),
                mtu_bytes=whole_in(own.get("active_mtu", "")),
                most_mtu_bytes=whole_in(own.get("max_mtu", "")),
            )


def ibstat(text: str, _: About) -> Iterator[Fact]:
    """Devices and ports in `ibstat`."""
    for block in _blocks(text, IBSTAT):
        match = IBSTAT.match(block)
        device = match[1] if match else ""
        general, *ports = re.split(r"^[ \t]+Port (?=\d+:)", block, flags=re.MULTILINE)
        values = _values(general)
        if values.get("Firmware version"):
            yield Firmware(device, values.get("CA type", ""), values["Firmware version"])
        for port in ports:
            own = _values(port)
            state, physical = own.get("State", "").upper(), own.get("Physical state", "")
            yield RdmaPort(device, whole_in(port), state, physical, rate=own.get("Rate", ""))


def show_gids(text: str, _: About) -> Iterator[Fact]:
    """The table of `show_gids`, which has no address in rows of GIDs without one."""
    for match in _GID.finditer(text):
        number, index = int(match["number"]), int(match["index"])
        yield Gid(match["device"], number, index, match["address"] or "", match["version"])


def _blocks(text: str, start: re.Pattern[str]) -> Iterator[str]:
    begins = [match.start() for match in start.finditer(text)]
    for begin, end in zip(begins, [*begins[1:], len(text)], strict=True):
        yield text[begin:end]


def _values(text: str) -> dict[str, str]:
    """The first value of each name in lines `name: value`."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.strip().partition(":")
        if colon:
            values.setdefault(name.strip(), value.strip())
    return values
