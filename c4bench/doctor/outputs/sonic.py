"""SONiC switches: tables of `show` and of the scripts behind it, and `portstat -j`."""

import re
from collections.abc import Iterator, Mapping

from c4bench.doctor.counters import count_of
from c4bench.doctor.facts import (
    Counters,
    DropRule,
    EcnProfile,
    Fact,
    Interface,
    PausedPriorities,
    Watchdog,
)
from c4bench.doctor.lldp import Neighbour
from c4bench.doctor.outputs.layout import About, json_object, tables, whole_in

COUNTERS = re.compile(r"^[ \t]*IFACE\s+STATE\s+\w+", re.MULTILINE)
PORTSTAT_JSON = re.compile(r'"(?:RX_ERR|FEC_UNCORR)"\s*:')
STATUS = re.compile(r"^[ \t]*Interface\s+Lanes\s+Speed\s+MTU", re.MULTILINE)
PFC_COUNTERS = re.compile(r"^[ \t]*Port [RT]x\s+PFC0", re.MULTILINE)
QUEUE_COUNTERS = re.compile(r"^[ \t]*Port\s+TxQ\s+Counter/pkts", re.MULTILINE)
DROPPED_GROUPS = re.compile(r"^[ \t]*Port\s+PG0\s+PG1", re.MULTILINE)
WATCHDOG = re.compile(r"^[ \t]*QUEUE\s+STATUS\s+STORM DETECTED/RESTORED", re.MULTILINE)
PFC_PRIORITY = re.compile(r"^[ \t]*Interface\s+Lossless priorities", re.MULTILINE)
ECN = re.compile(r"^Profile: \S+\s*\n-{2,}", re.MULTILINE)
RULES = re.compile(r"^[ \t]*RULE NAME\s+TABLE NAME\s+PRIO", re.MULTILINE)
NEIGHBOURS = re.compile(r"^[ \t]*LocalPort\s+RemoteDevice\s+RemotePortID", re.MULTILINE)
_MAC = re.compile(r"(?:[0-9a-f]{2}:){3}", re.IGNORECASE)
_PROFILE = re.compile(r"^Profile: (\S+)\s*\n((?:.+\n)*)", re.MULTILINE)
# The letters of the column STATE: up, down, and set down by hand.
_STATES: Mapping[str, tuple[bool | None, bool | None]] = {"U": (True, True), "D": (False, None), "X": (False, False)}


def _port(name: str, row: Mapping[str, object]) -> Iterator[Fact]:
    """The state and the counters of a port; what a platform does not have (`N/A`) is left out."""
    state = str(row.get("STATE", ""))
    if state in _STATES:
        yield Interface(name, *_STATES[state])
    counts = {key: count for key, value in row.items() if (count := count_of(value)) is not None}
    yield Counters(name, counts)


def counters(text: str, _: About) -> Iterator[Fact]:
    """`show interfaces counters`, also with fec-stats or errors, and `portstat`."""
    for rows in tables(text):
        for row in rows:
            if row.get("IFACE"):
                yield from _port(row["IFACE"], row)


def portstat_json(text: str, _: About) -> Iterator[Fact]:
    """`portstat -j`."""
    for name, row in json_object(text).items():
        if isinstance(row, dict):
            yield from _port(name, row)


def status(text: str, _: About) -> Iterator[Fact]:
    """`show interfaces status`."""
    for rows in tables(text):
        for row in rows:
            if row.get("Interface"):
                up, admin = ({"up": True, "down": False}.get(row.get(key, "").lower()) for key in ("Oper", "Admin"))
                speed = row.get("Speed", "")
                rate_bps = whole_in(speed) * (1e9 if speed.upper().endswith("G") else 1e6)
                yield Interface(row["Interface"], up, admin, rate_bps, mtu_bytes=whole_in(row.get("MTU", "")))


def pfc_counters(text: str, _: About) -> Iterator[Fact]:
    """`show pfc counters`: the pauses that ports received and sent, by priority."""
    for rows in tables(text):
        for row in rows:
            for way in ("Rx", "Tx"):
                counts = {f"{way}_{key}": count_of(value) for key, value in row.items() if key.startswith("PFC")}
                if port := row.get(f"Port {way}"):
                    known = {key: count for key, count in counts.items() if count is not None}
                    yield Counters(port, known)


def queue_counters(text: str, _: About) -> Iterator[Fact]:
    """`show queue counters`: the packets that queues dropped."""
    dropped: dict[str, dict[str, int]] = {}
    for rows in tables(text):
        for row in rows:
            count = count_of(row.get("Drop/pkts"))
            if row.get("Port") and row.get("TxQ") and count is not None:
                dropped.setdefault(row["Port"], {})[f"{row['TxQ']}_dropped"] = count
    for port, counts in dropped.items():
        yield Counters(port, counts)


def dropped_groups(text: str, _: About) -> Iterator[Fact]:
    """`show priority-group drop counters`."""
    for rows in tables(text):
        for row in rows:
            counts = {f"{key}_dropped": count for key, value in row.items() if (count := count_of(value)) is not None}
            if row.get("Port"):
                yield Counters(row["Port"], counts)


def watchdog(text: str, _: About) -> Iterator[Fact]:
    """`show pfcwd stats`."""
    for rows in tables(text):
        for row in rows:
            detected, slash, restored = row.get("STORM DETECTED/RESTORED", "").partition("/")
            if row.get("QUEUE") and slash:
                yield Watchdog(row["QUEUE"], row.get("STATUS", ""), count_of(detected) or 0, count_of(restored) or 0)


def pfc_priority(text: str, _: About) -> Iterator[Fact]:
    """`show pfc priority`."""
    for rows in tables(text):
        for row in rows:
            if row.get("Interface"):
                yield PausedPriorities(row["Interface"], row.get("Lossless priorities", ""))


def ecn(text: str, _: About) -> Iterator[Fact]:
    """`show ecn`, `ecnconfig -l`."""
    for match in _PROFILE.finditer(text):
        values = dict(words for line in match[2].splitlines() if len(words := line.split()) == 2)
        yield EcnProfile(match[1], values.get("ecn", ""))


def rules(text: str, _: About) -> Iterator[Fact]:
    """`aclshow`, `show acl counters`."""
    for rows in tables(text):
        for row in rows:
            packets = count_of(row.get("PACKETS COUNT"))
            if row.get("RULE NAME") and packets is not None:
                yield DropRule(row["RULE NAME"], row.get("TABLE NAME", ""), packets)


def neighbours(text: str, _: About) -> Iterator[Fact]:
    """`show lldp table`."""
    for rows in tables(text):
        for row in rows:
            if row.get("LocalPort") and row.get("RemoteDevice"):
                port, described = row.get("RemotePortID", ""), row.get("RemotePortDescr", "")
                port = described if described and _MAC.match(port) else port
                yield Neighbour(row["LocalPort"], row["RemoteDevice"], port)
