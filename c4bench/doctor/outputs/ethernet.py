"""Interfaces of hosts: `ethtool` with and without -i, -S, -m, `mlxlink`, `mlnx_qos`, `dcb`, and `ip -s -j link`."""

import re
from collections.abc import Iterator

from c4bench.doctor.counters import count_of
from c4bench.doctor.facts import Advice, Counters, Fact, Firmware, Interface, Module, Qos, TrafficClass
from c4bench.doctor.look import mlnx_trust, priorities
from c4bench.doctor.outputs.layout import About, json_list, json_object, number_in, pairs, whole_in

SETTINGS = re.compile(r"^Settings for ([^\s:]{1,64}):", re.MULTILINE)
DRIVER = re.compile(r"^driver: \S+\s*\n(?:.*\n){0,3}?firmware-version:", re.MULTILINE)
STATISTICS = re.compile(
    r"^NIC statistics:|^Standard stats for \S"
    r"|^[ \t]*[rt]x_\w+(?:\.nic)?: \d+[ \t]*\n[ \t]*\w+(?:\.nic)?: \d+[ \t]*$",
    re.MULTILINE,
)
MODULE = re.compile(r"^[ \t]*Identifier\s+: 0x[0-9a-f]{2} ", re.MULTILINE)
MLXLINK = re.compile(
    r"\"Operational Info\"\s*:|^Operational Info\s*\n-{3,}|^Physical state\s+: .*\n(?:.*\n){0,6}?^FEC\s+:", re.MULTILINE
)
MLNX_QOS = re.compile(r"^Priority trust state:|^PFC configuration:", re.MULTILINE)
IP_LINK = re.compile(r'"(?:stats64|operstate)"\s*:')
_CLASS = re.compile(
    r"^tc: (\d{1,2}) ratelimit: .*?tsa: (\w+)(?:, bw: (\d{1,3})%)?.*$((?:\n\s+priority:\s+\d.*)*)", re.MULTILINE
)
_RATE = re.compile(r"(\d{2,7})base\w+")
_LIGHT = re.compile(
    r"(?:Rcvr signal avg optical power|Receiver signal average optical power)"
    r"\s*(?:\(.*?\))?\s*:.*?(-?\d+\.\d+|-inf) dBm"
)
_NO_LIGHT_DBM = -40.0  # how modules state that they receive none
_NO_ISSUE = ("no issue", "n/a")
_MLXLINK_COUNTERS = {
    "Symbol Errors": "symbol_errors",
    "Effective Physical Errors": "effective_physical_errors",
    "Link Down Counter": "link_down_counter",
}


def settings(text: str, _: About) -> Iterator[Fact]:
    """The state, the speed and the fastest supported mode of an interface, from plain `ethtool`."""
    begins = [*SETTINGS.finditer(text)]
    for match, end in zip(begins, [*(later.start() for later in begins[1:]), len(text)], strict=True):
        block = text[match.start() : end]
        values = dict(pairs(block))
        supported = block.partition("Supported link modes:")[2].partition("Supported pause")[0]
        fastest = max((int(rate) * 1e6 for rate in _RATE.findall(supported)), default=0.0)
        detected = values.get("Link detected", "").lower()
        up = {"yes": True, "no": False}.get(detected.partition(" ")[0])
        yield Interface(match[1], up, rate_bps=whole_in(values.get("Speed", "")) * 1e6, most_rate_bps=fastest)


def driver(text: str, about: About) -> Iterator[Fact]:
    """The driver and the firmware of an interface, from `ethtool -i`."""
    values = dict(pairs(text))
    version, _, board = values.get("firmware-version", "").partition(" ")
    kind = f"{values.get('driver', '')} {board}".strip()
    if version not in {"", "N/A"}:
        yield Firmware(about.port or values.get("bus-info", ""), kind, version)


def statistics(text: str, about: About) -> Iterator[Fact]:
    """The counters in `ethtool -S`."""
    found = {name: count for name, value in pairs(text) if (count := count_of(value)) is not None}
    yield Counters(about.port, found)


def module(text: str, about: About) -> Iterator[Fact]:
    """Alarms that are on, and received light, in `ethtool -m`."""
    on = [name for name, value in pairs(text) if value.lower() == "on" and "alarm" in name.lower()]
    on += [name for name, value in pairs(text) if "loss of signal" in name.lower() and "yes" in value.lower()]
    light = tuple(max(float(match[1]), _NO_LIGHT_DBM) for match in _LIGHT.finditer(text))
    yield Module(about.port, tuple(on), light)


def mlxlink(text: str, about: About) -> Iterator[Fact]:
    """State, advice and counters in `mlxlink`, also with --json."""
    values = dict(pairs(text)) | dict(_texts(json_object(text)))
    state = values.get("State", "").lower()
    rate_bps = number_in(values.get("Speed", "")) * 1e9 if "G" in values.get("Speed", "") else 0.0
    if state:
        yield Interface(about.port, state == "active", rate_bps=rate_bps)
    advice = values.get("Recommendation", "")
    if advice and not advice.lower().startswith(_NO_ISSUE):
        yield Advice("mlxlink", about.port, advice, serious=True)
    counts = {
        name: count for key, name in _MLXLINK_COUNTERS.items() if (count := count_of(values.get(key))) is not None
    }
    if counts:
        yield Counters(about.port, counts)


def _texts(value: dict[str, object]) -> Iterator[tuple[str, str]]:
    """The texts in nested JSON, by the innermost key."""
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from _texts(inner)
        elif isinstance(inner, str | int):
            yield key, str(inner)


def mlnx_qos(text: str, about: About) -> Iterator[Fact]:
    """The queues of an interface, as `mlnx_qos` prints them."""
    trust, by_dscp = mlnx_trust(text)
    paused = priorities(text)
    queues = []
    for match in _CLASS.finditer(text):
        own = tuple(int(number) for number in re.findall(r"priority:\s+(\d)", match[4]))
        queues.append(TrafficClass(int(match[1]), match[2], int(match[3] or 0), own))
    pfc = None if paused is None else tuple(paused)
    length = re.search(r"^Cable len: (\d{1,6})", text, re.MULTILINE)
    yield Qos(about.port, trust, tuple(by_dscp), pfc, tuple(queues), int(length[1]) if length else 0)


def ip_link(text: str, _: About) -> Iterator[Fact]:
    """State and counters of interfaces in `ip -s -j link`."""
    for one in json_list(text):
        name, flags = str(one.get("ifname", "")), one.get("flags")
        if not name or name == "lo":
            continue
        state = str(one.get("operstate", ""))
        up = {"UP": True, "DOWN": False, "LOWERLAYERDOWN": False}.get(state)
        admin, mtu = "UP" in flags if isinstance(flags, list) else None, count_of(one.get("mtu")) or 0
        yield Interface(name, up, admin, mtu_bytes=mtu)
        counts = _of_stats(one.get("stats64"))
        if counts:
            yield Counters(name, counts)


def _of_stats(stats: object) -> dict[str, int]:
    """Counters of `stats64`. Drops of a host's interface are frames that it does not want, too."""
    counts: dict[str, int] = {}
    for way in ("rx", "tx"):
        own = stats.get(way) if isinstance(stats, dict) else None
        for key in ("packets", "bytes", "errors"):
            count = count_of(own.get(key)) if isinstance(own, dict) else None
            if count is not None:
                counts[f"{way}_{key}"] = count
    return counts
