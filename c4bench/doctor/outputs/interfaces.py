"""Interfaces and ports as EOS, NX-OS, Cumulus, `netstat -i` and `ip -s link` list them: states and counters."""

import re
from collections.abc import Iterator

from c4bench.doctor.counters import count_of
from c4bench.doctor.facts import Advice, Counters, Fact, Interface
from c4bench.doctor.lldp import Neighbour
from c4bench.doctor.outputs.layout import About, tables

COUNTERS = re.compile(
    r"^[ \t]*(?:Port|Iface|Interface)[ \t]+"
    r"(?:MTU[ \t]+(?:Met[ \t]+)?RX[-_]OK|(?:FCS|Align|Align-Err|InDiscards|RxPfc|OutDiscards)\b)",
    re.MULTILINE | re.IGNORECASE,
)
STATUS = re.compile(r"^Port[ \t]+(?:Name[ \t]+)?Status[ \t]+Vlan\b", re.MULTILINE)
CUMULUS = re.compile(r"^(?:State[ \t]+Name[ \t]+Spd\b|Interface[ \t]+(?:Admin Status|State)[ \t]+)", re.MULTILINE)
NEIGHBOURS = re.compile(r"^Port[ \t]+Neighbor Device ID[ \t]+Neighbor Port ID", re.MULTILINE)
IP_LINK = re.compile(r"^\d{1,5}: [^\s:]{1,32}: <[A-Z_,0-9-]*> mtu \d+", re.MULTILINE)
_HEADING = re.compile(r"(?:Port|Iface|Interface)\s", re.IGNORECASE)
# What EOS calls counters of frames with errors, by words that say nothing alone.
_CALLED = {"Rx": "Rcv-Err", "Tx": "Xmit-Err"}
_ROW = re.compile(
    r"^(?P<port>[A-Z][A-Za-z]*\d[\d/.]*)[ \t].*?[ \t]"
    r"(?P<state>connected|notconnec\w*|err-?disab\w*|disabled|inactive|xcvr\w*|sfp\w*)[ \t]",
    re.MULTILINE,
)
_BLOCK = re.compile(r"^\d{1,5}: (?=[^\s:]{1,32}: <)", re.MULTILINE)
_LINK = re.compile(
    r"(?P<name>[^\s:@]+)(?:@[^\s:]+)?: <(?P<flags>[^>]*)> mtu (?P<mtu>\d{1,9})\b(?:.*\bstate (?P<state>[A-Z]+))?"
)
_COUNTS = re.compile(r"^[ \t]+(?P<way>RX|TX):[ \t]+(?P<names>bytes\b.*)\n[ \t]+(?P<counts>\d.*)$", re.MULTILINE)
_STATES = {"UP": True, "DOWN": False, "LOWERLAYERDOWN": False, "DN": False}


def counters(text: str, _: About) -> Iterator[Fact]:
    """Tables with a port and its counters in each row, as of EOS, NX-OS, Cumulus and `netstat -i`."""
    names: list[str] = []
    for line in text.splitlines():
        words = line.split()
        if _HEADING.match(line.lstrip()):
            names = [_CALLED.get(word, word.replace("X-", "X_")) for word in words[1:]]
        elif names and len(words) == len(names) + 1 and words[0].lower() not in {"lo", "totals"}:
            counts = {
                name: count
                for name, word in zip(names, words[1:], strict=True)
                if (count := count_of(word)) is not None
            }
            if counts:
                yield Counters(words[0], counts)


def status(text: str, _: About) -> Iterator[Fact]:
    """`show interfaces status` of EOS and NX-OS."""
    for match in _ROW.finditer(text):
        port, state = match["port"], match["state"]
        if state.startswith("err"):
            yield Advice(
                "the switch", port, "has disabled the port after an error; its log has the reason", serious=True
            )
        elif state.startswith(("xcvr", "sfp", "inactive")):
            continue
        else:
            yield Interface(port, state == "connected", state != "disabled")


def cumulus(text: str, _: About) -> Iterator[Fact]:
    """`net show interface` and `nv show interface` of Cumulus."""
    for rows in tables(text):
        for row in rows:
            name = row.get("Name") or row.get("Interface") or ""
            state = (row.get("Oper Status") or row.get("State") or "").upper()
            admin = {"UP": True, "DOWN": False}.get(row.get("Admin Status", "").upper())
            if not name or name == "lo" or state not in {*_STATES, "ADMDN"}:
                continue
            yield Interface(name, _STATES.get(state, False), False if state == "ADMDN" else admin)
            by_lldp = [*row.get("LLDP", "").split(), "", ""]
            system, port = row.get("Remote Host") or by_lldp[0], row.get("Remote Port") or by_lldp[1].strip("()")
            if system and port:
                yield Neighbour(name, system, port)


def neighbours(text: str, _: About) -> Iterator[Fact]:
    """`show lldp neighbors` of EOS."""
    for rows in tables(text):
        for row in rows:
            if row.get("Port") and row.get("Neighbor Device ID"):
                yield Neighbour(row["Port"], row["Neighbor Device ID"], row.get("Neighbor Port ID", ""))


def ip_link(text: str, _: About) -> Iterator[Fact]:
    """`ip link`, `ip -s link` and `ip addr` as text."""
    for block in _BLOCK.split(text)[1:]:
        link = _LINK.match(block)
        if link is None or link["name"] == "lo":
            continue
        up, admin = _STATES.get(link["state"] or ""), "UP" in link["flags"].split(",")
        yield Interface(link["name"], up, admin, mtu_bytes=int(link["mtu"]))
        counts: dict[str, int] = {}
        for match in _COUNTS.finditer(block):
            own = dict(zip(match["names"].split(), match["counts"].split(), strict=False))
            for key in ("packets", "bytes", "errors"):
                if (count := count_of(own.get(key))) is not None:
                    counts[f"{match['way'].lower()}_{key}"] = count
        if counts:
            yield Counters(link["name"], counts)
