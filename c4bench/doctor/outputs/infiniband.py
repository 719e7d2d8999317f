"""InfiniBand fabrics: `ibnetdiscover`, `iblinkinfo`, `ibqueryerrors`, `perfquery`, and the log of `ibdiagnet`."""

import re
from collections.abc import Iterator

from c4bench.doctor.counters import count_of
from c4bench.doctor.facts import Advice, Counters, FabricLink, Fact
from c4bench.doctor.outputs.layout import About
from c4bench.inventory.cabling import ibnetdiscover

DISCOVERED = ibnetdiscover.RECOGNISED
LINKINFO = re.compile(r"==\(.{0,120}?\)==>")
ERRORS = re.compile(r"^Errors for (?:(?:0x)?[0-9a-f]+ )?\"|GUID 0x[0-9a-f]+ port \d+: \[", re.MULTILINE)
PERFQUERY = re.compile(r"^# Port (?:extended )?counters: Lid \d+", re.MULTILINE)
DIAGNOSIS = re.compile(r"^-[EWI]- .*", re.MULTILINE)
_LINK = re.compile(
    r"^[ \t]*(?:0x[0-9a-f]+\s+)?\"?(?P<node>[^\"\n]*?)\"?\s*(?:\d+\s+)?"
    r"(?P<port>\d{1,3})\[\s*\]\s*==\(\s*(?P<speed>.*?)\s*"
    r"(?P<state>Active|Down|Init\w*|Armed|Disabled)/\s*(?P<physical>\w+)\s*\)==>"
    r"(?:\s+(?:0x[0-9a-f]+\s+)?(?:\d+\s+)?(?P<far_port>\d{1,3})\[\s*\]\s*\"(?P<far>[^\"]*)\")?(?P<rest>.*)$"
)
_HEADING = re.compile(r"^(?P<kind>CA|Switch|Router):\s+(?:0x[0-9a-f]+\s+)?\"?(?P<name>[^\"\n]*?)\"?:\s*$")
_LONGEST = 400  # characters of a line
_COULD_BE = re.compile(r"Could be ([^)]*?)\s*\)")
_NODE = re.compile(r"^Errors for (?:(?:0x)?[0-9a-f]+ )?\"(?P<name>[^\"]*)\"")
_COUNT = re.compile(r"\[(?P<name>\w+) == (?P<count>\d{1,20})")
_PORT = re.compile(r"port (?P<number>\d{1,3}|ALL):(?P<counts> \[.*)")


def netdiscover(text: str, _: About) -> Iterator[Fact]:
    """The links in `ibnetdiscover`, with width and speed."""
    found = ibnetdiscover.links(text)
    for link in found:
        ends = f"{link.a}[{link.a_port}]", f"{link.b}[{link.b_port}]"
        yield FabricLink(ends, link.speed, between_switches=not link.has_host)


def linkinfo(text: str, _: About) -> Iterator[Fact]:
    """The links in `iblinkinfo`, each of which is listed by both of its ends."""
    heading, is_switch, seen = "", False, set[frozenset[str]]()
    for line in text.splitlines():
        if match := _HEADING.match(line):
            heading, is_switch = ibnetdiscover.node_name(match["name"]), match["kind"] == "Switch"
        match = _LINK.match(line[:_LONGEST]) if "==(" in line[:_LONGEST] else None
        if not match or match["state"] == "Down":
            continue
        near = ibnetdiscover.node_name(match["node"].strip()) or heading
        far = ibnetdiscover.node_name(match["far"] or "")
        ends = f"{near}[{match['port']}]", f"{far}[{match['far_port'] or ''}]"
        if frozenset(ends) in seen:
            continue
        seen.add(frozenset(ends))
        could = _COULD_BE.search(match["rest"])
        both = is_switch and ibnetdiscover.is_switch_name(match["far"] or "")
        yield FabricLink(ends, " ".join(match["speed"].split()), could[1] if could else "", both)


def errors(text: str, _: About) -> Iterator[Fact]:
    """The counters in `ibqueryerrors`, which lists only what is above its thresholds."""
    node = ""
    for line in text.splitlines():
        if match := _NODE.match(line):
            node = ibnetdiscover.node_name(match["name"])
        if (match := _PORT.search(line)) and match["number"] != "ALL":
            counts = {one["name"]: int(one["count"]) for one in _COUNT.finditer(match["counts"])}
            if counts:
                yield Counters(f"{node}[{match['number']}]", counts)


def perfquery(text: str, _: About) -> Iterator[Fact]:
    """The counters of one port in `perfquery`."""
    counts = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        count = count_of(value.strip(". "))
        if colon and count is not None:
            counts[name.strip()] = count
    match = re.search(r"Lid (\d+) port (\d+)", text)
    yield Counters(f"LID {match[1]} port {match[2]}" if match else "", counts)


def diagnosis(text: str, _: About) -> Iterator[Fact]:
    """The errors and warnings in ibdiagnet's log, each once."""
    for line in dict.fromkeys(match[0] for match in DIAGNOSIS.finditer(text)):
        if not line.startswith("-I-"):
            yield Advice("ibdiagnet", "", line[4:], serious=line.startswith("-E-"))
