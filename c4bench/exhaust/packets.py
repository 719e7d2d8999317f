"""The kernel's list of the packets of a trial, and its switch for events (machine/rxe_events.c)."""

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from c4bench.errors import UnhealthyError
from c4bench.exhaust.trials import REPAIRED, Counts, Event

_SWITCH = Path("/sys/module/rdma_rxe/parameters/packet_events")
_LIST = Path("/proc/rxe_packets")
_UNTOUCHED = "-"
_LOOK_S = 0.001
# Opcodes of READ's responses and of acknowledgements, which have the numbers of the peer's packets.
_ANSWERS = range(13, 19)
_PSNS = 1 << 24


class Packet(NamedTuple):
    """A packet that was sent or received, `ns` after the start.

    Lists of two runs can be compared: queue pairs are numbered in the order of their first packets, -1 where the list
    does not have the number, and `psn` counts from the requester's first packet. `happened` is the event, `dark` for a
    packet that was lost with a NIC, else `-`.
    """

    way: str
    number: int
    ns: int
    device: str
    qp: int
    destination: int
    psn: int
    opcode: int
    size_bytes: int
    happened: str


def begin(event: Event | None) -> None:
    """Number packets from here on, with this event. Raises UnhealthyError where the kernel cannot."""
    at = [f"{one.what}:{one.number}" for one in event.all if one.what != REPAIRED] if event else ["count"]
    try:
        _SWITCH.write_text(",".join(at))
    except OSError as error:
        raise UnhealthyError(f"{_SWITCH}: {error.strerror}; run this in a lab of this release") from None


def end() -> None:
    """Stop; NICs that an event has taken down are up again."""
    _SWITCH.write_text("off")


def read(earlier: str = "") -> list[Packet]:
    """The packets since `begin`, in order, after those of an earlier list."""
    return parse(earlier + _LIST.read_text())


def parse(text: str) -> list[Packet]:
    """The packets of the kernel's list."""
    first_seen: dict[int, int] = {}
    first_psns: dict[int, int] = {}
    packets = []
    for line in text.splitlines():
        way, number, ns, device, qp, destination, psn, opcode, size, happened = line.split()
        ends = [first_seen.setdefault(int(end), len(first_seen)) if int(end) else -1 for end in (qp, destination)]
        requester = ends[int(opcode) in _ANSWERS]
        since_first = (int(psn) - first_psns.setdefault(requester, int(psn))) % _PSNS
        packets.append(
            Packet(way, int(number), int(ns), device, ends[0], ends[1], since_first, int(opcode), int(size), happened)
        )
    return packets


def text(packets: Sequence[Packet]) -> str:
    """A line for each."""
    return "".join(f"{' '.join(map(str, packet))}\n" for packet in packets)


def counts(packets: Sequence[Packet]) -> Counts:
    """How many were sent and how many were received."""
    sent = sum(packet.way == "sent" for packet in packets)
    return Counts(sent, len(packets) - sent)


def digest(packets: Sequence[Packet]) -> str:
    """The same for the same packets in the same order."""
    return hashlib.sha256(repr([tuple(packet) for packet in _timeless(packets)]).encode()).hexdigest()[:16]


def _timeless(packets: Sequence[Packet]) -> list[Packet]:
    """The packets without their times, which timers of others may move a little."""
    return [packet._replace(ns=0) for packet in packets]


def event_at(packets: Sequence[Packet]) -> int | None:
    """Where in a list the event happened, None if it did not."""
    for index, packet in enumerate(packets):
        if packet.happened != _UNTOUCHED:
            return index
    return None


def same_until_event(packets: Sequence[Packet], undisturbed: Sequence[Packet]) -> bool:
    """Whether the packets before the event, and the one it happened to, are those of the run without it."""
    at = event_at(packets)
    if at is None or at >= len(undisturbed):
        return False
    before, expected = _timeless(packets[: at + 1]), _timeless(undisturbed[: at + 1])
    before[at] = before[at]._replace(happened=_UNTOUCHED)
    return before == expected


class Repair:
    """Gives NICs their links back where the event says so; `listed` are the packets until then.

    From then on packets are numbered from 1 again.
    """

    def __init__(self, event: Event | None) -> None:
        repaired = [each.number / 1000 for each in (event.all if event else ()) if each.what == REPAIRED]
        self._after_s = repaired[0] if repaired else math.inf
        self._at_s = math.inf
        self.listed = ""

    @property
    def look_s(self) -> float:
        """How long may pass between two looks."""
        return math.inf if self._after_s == math.inf or self.listed else _LOOK_S

    def look(self, now_s: float) -> None:
        """See whether something has happened, and do what is due."""
        if self.look_s == math.inf:
            return
        if self._at_s == math.inf and event_at(read()) is not None:
            self._at_s = now_s + self._after_s
        if now_s >= self._at_s:
            self.listed = _LIST.read_text()
            _SWITCH.write_text("count")
