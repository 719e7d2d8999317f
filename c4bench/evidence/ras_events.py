"""Events of NCCL RAS's monitor mode (`ncclras -m`, 2.29 and later): which processes stopped answering, as text or JSON.

Source: NCCL's user guide, "RAS", and `rasClientsNotifyEvent` in `src/ras/client_support.cc`. An event is a line such as
`[2025-12-19 13:07:07] PEER_DEAD: Process 1524345 on node 172.16.64.245 managing GPU 1`, or an object of several lines.
Times are of the day where it was written, without a zone, so only their order is used.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from c4bench.evidence.fields import integer, mapping, text
from c4bench.evidence.limits import MOST_LINES, UnreadableError, json_data, short_name
from c4bench.model.evidence import MemberEvidence, Problem, Reading, SourceFile

FORMAT = "NCCL RAS events"
_CANNOT = "NCCL RAS events: they name processes and not ranks, and only those that stopped answering RAS's own threads"
_LINE = re.compile(rb"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] PEER_[A-Z_]{1,40}:", re.MULTILINE)
_EVENT = re.compile(r"^\[[^\]]{19}\] (PEER_[A-Z_]{1,40}): Process (\d{1,18}) on node (\S{1,256})")
_GREETING = (b"RAS Monitor Mode", b"====", b"OK")
_OBJECT_END = re.compile(rb"(?<=\n\})\s*\n")
_MOST_EVENTS = 200_000
# What an event says of a process from then on. All other events change nothing.
_STATUS = {
    "PEER_DEAD": "dead",
    "PEER_TIMEOUT_DEAD": "dead",
    "PEER_UNRESPONSIVE": "unresponsive",
    "PEER_KEEPALIVE_TIMEOUT": "unresponsive",
    "PEER_SEND_STUCK": "unresponsive",
    "PEER_NEW": "",
    "PEER_CONNECTED": "",
    "PEER_RECOVERED": "",
}


class _Event(NamedTuple):
    name: str
    host: str
    pid: int


def recognises(head: bytes, _name: str) -> bool:
    """Whether a file that begins with `head` has events of RAS."""
    return (b"] PEER_" in head and bool(_LINE.search(head))) or (b'"PEER_' in head and b'"event"' in head)


def read(data: bytes, file: str) -> Reading:
    """The processes that had not answered again by the end of `data`. Raises UnreadableError."""
    if data.count(b"\n") + data.count(b"\r") > MOST_LINES:
        raise UnreadableError(f"it has more than {MOST_LINES} lines")
    parts = _parts(data)
    if len(parts) > _MOST_EVENTS:
        raise UnreadableError(f"it has more than {_MOST_EVENTS} events")
    status: dict[tuple[str, int], str] = {}
    bad: list[int] = []
    for number, part in enumerate(parts, start=1):
        event = _json_event(part) if part.startswith(b"{") else _text_event(part)
        if event is None:
            bad.append(number)
        elif event.name in _STATUS and event.pid >= 0:
            status[event.host, event.pid] = _STATUS[event.name]
    members = tuple(MemberEvidence(file, FORMAT, "", host=host, pid=pid, status=word)
                    for (host, pid), word in sorted(status.items()) if word)  # fmt: skip
    problems = (Problem(file, f"{len(bad)} events cannot be used", f"event {bad[0]}"),) if bad else ()
    return Reading(members, (SourceFile(file, FORMAT, "", ()),), problems, (_CANNOT,))


def _parts(data: bytes) -> list[bytes]:
    """The events: lines, or objects that end with a brace on a line of its own."""
    data = b"\n".join(line for line in data.splitlines() if not line.startswith(_GREETING))
    parts: Iterator[bytes]
    if b"\n}" in data or data.lstrip().startswith(b"{"):
        parts = (part.strip() for part in _OBJECT_END.split(data))
    else:
        parts = (line.strip() for line in data.splitlines())
    return [part for part in parts if part]


def _text_event(line: bytes) -> _Event | None:
    """An event; one of a peer that RAS knows by its address only has no process."""
    if not _LINE.match(line):
        return None
    found = _EVENT.match(line.decode("utf-8", "replace"))
    return _Event(found[1], short_name(found[3]), integer(found[2])) if found else _Event("", "", -1)


def _json_event(part: bytes) -> _Event | None:
    try:
        document = mapping(json_data(part))
    except UnreadableError:
        return None
    peer = mapping(document.get("peer"))
    name = text(document.get("event"))
    return _Event(name, short_name(text(peer.get("host"))), integer(peer.get("pid"))) if name else None
