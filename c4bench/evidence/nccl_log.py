"""NCCL's lines of NCCL_DEBUG: failed connections with both ends, NICs and their addresses, channels, initialisation.

Source: `src/transport/net_ib.cc` (later `net_ib/`), `src/init.cc` and `src/misc/socket.cc` of NCCL 2.8 to 2.30, and
logs of these. A line begins with `HOST:PID:THREAD [GPU]`. The interface half of a GID is written as a number in the
host's byte order, so a RoCE address is read backwards. A flushed request (status 5) follows from another failure.
"""

import ipaddress
import re
from collections.abc import Iterator

from c4bench.budget import Account
from c4bench.evidence.fields import integer
from c4bench.evidence.limits import MOST_RANKS, short_name, short_words
from c4bench.evidence.lines import Line
from c4bench.evidence.watchdog import written_at
from c4bench.model.evidence import CommStart, FailedConnection, LogEvent

NEEDLES = (b"NCCL WARN", b"NET/IB", b" nranks ")
FLUSHED, UNANSWERED = 5, 12
# Beside the statuses of requests: the number of an error of connecting (ETIMEDOUT).
TIMED_OUT = 110
STATUSES = {
    1: "local length error", 2: "local QP error", 4: "local protection error (memory that the NIC may not access)",
    FLUSHED: "flushed, as an earlier request failed", 9: "remote invalid request", 10: "remote access error",
    11: "remote operation error", UNANSWERED: "retries exceeded: the other end has not answered",
    13: "receiver not ready, retries exceeded: the other end has posted no receive", 21: "fatal error",
    TIMED_OUT: "timed out while connecting",
}  # fmt: skip
_HEAD = re.compile(r"([\w.-]{1,253}):(\d{1,9}):\d{1,9} \[-?\d{1,4}\] .{0,120}?NCCL (INFO|WARN) (.*)")
_PEER = re.compile(r"Got completion (?:from peer (\S{1,300}?)(?:<\d{1,5}>)? )?with ")
_STATUS = re.compile(r"\b(?:status|error)[ =](?:[A-Z_]{1,40}\()?(\d{1,3})\)?")
_VENDOR = re.compile(r"\bvendor[ _]err[ =](\d{1,9})")
_ENDS = re.compile(r"\blocalGid (\S{1,64}) remoteGids? ?(\S{1,64})")
_HCA = re.compile(r"\bhca (\S{1,64})")
_USING = re.compile(r"\[(\d{1,4})\](\S{1,64}?):\d{1,3}/(?:RoCE|IB)")
_OOB = re.compile(r"\bOOB \S{1,64}?:([^<\s]{1,64})<")
_GID = re.compile(r"\bIbDev (\d{1,4}) Port \d{1,3} .{0,200}?\bGID \d{1,4} \(([\dA-Fa-f]{1,16})/([\dA-Fa-f]{1,16})\)")
_CHANNEL = re.compile(
    r"^Channel \d{1,4}(?:/\d{1,4})? : (\d{1,7})\[\w{1,16}\] -> (\d{1,7})\[\w{1,16}\] \[send\] via NET/IB/(\d{1,4})"
)
_START = re.compile(
    r"\brank (\d{1,7}) nranks (\d{1,7})\b(?:.{0,200}?\bcommId (\w{1,32}))?.{0,80}?\bInit (START|COMPLETE)"
)
_PORT = re.compile(
    r"NET/IB ?: ?(?:(\S{1,64}?):\d{1,3} )?(?:Got async (?:fatal )?event|async fatal event[^:]{0,64}) ?: ?(.{1,80})"
)
_BAD_PORT = re.compile(r"port err|device fatal|catastrophic", re.IGNORECASE)
_MODIFY = re.compile(
    r"ibv_modify_qp failed with .{0,64}?timed out.{0,16}? on dev (\S{1,64}?):\d"
    r".{0,200}?local GID (\S{1,64}), remote GID (\S{1,64})"
)
_CLOSER = re.compile(
    r"(?:remote peer|Call to \w{1,16} (?:to|from)|[Cc]onnect(?:ion)? to) ([\w.:-]{1,253}?)(?:<\d{1,5}>)"
)
_BROKEN = re.compile(
    r"[Cc]onnection (?:closed|reset) by (?:remote )?peer|Connection refused|No route to host|timed out"
)
_MOST_CARRIED = 65_536


class NcclLog:
    """What the lines of one file tell."""

    def __init__(self, file: str, account: Account) -> None:
        self._file, self._account = file, account
        self._failed: dict[tuple[str, str, str, str, int], FailedConnection] = {}
        self._devices: dict[tuple[str, int], str] = {}
        self._gids: dict[str, tuple[str, int]] = {}
        self._starts: dict[tuple[str, int], tuple[set[int], set[int]]] = {}
        self._channels: set[tuple[str, int, int, int]] = set()
        self._ranks: dict[tuple[str, int], int] = {}
        self.names: dict[str, str] = {}
        self.closed: dict[str, set[tuple[str, int]]] = {}
        self.events: list[LogEvent] = []

    def read(self, line: Line, number: int) -> bool:
        """Read line `number`; False if it is none of NCCL's. Raises OverBudgetError."""
        head = _HEAD.search(line.text)
        if head is None:
            return self._read_repeated(line, number)
        host, pid, words = short_name(head[1]), int(head[2]), head[4]
        if head[3] == "INFO":
            self._read_info(host, pid, words)
        else:
            self._read_warning(line._replace(host=host, pid=pid, text=words), number, written_at(line))
        return True

    def _read_repeated(self, line: Line, number: int) -> bool:
        """Read the words of a failed connection in the text of an exception; False if they are not there."""
        found = _PEER.search(line.text) if "NET/IB" in line.text else None
        if found is None:
            return False
        self._account.spend(records=1)
        self._read_completion(found[1] or "", line, number, written_at(line))
        return True

    def _read_info(self, host: str, pid: int, words: str) -> None:
        if "Using [" in words:
            self._account.spend(records=1)
            self._devices |= {(host, int(number)): short_name(name) for number, name in _USING.findall(words)}
            if oob := _OOB.search(words):
                self.names[address(oob[1])] = host
        elif found := _GID.search(words):
            self._account.spend(records=1)
            self._gids[_gid(found[2], found[3])] = host, int(found[1])
        elif (found := _CHANNEL.search(words)) and len(self._channels) < _MOST_CARRIED:
            self._channels.add((host, int(found[3]), int(found[1]), int(found[2])))
        elif (found := _START.search(words)) and int(found[2]) <= MOST_RANKS:
            self._account.spend(records=1)
            # Without an id, communicators of one size are not told apart, and only the last of a process counts.
            begun, completed = self._starts.setdefault((found[3] or "", int(found[2])), (set(), set()))
            (begun if found[4] == "START" else completed).add(int(found[1]))
            self._ranks[host, pid] = int(found[1])

    def _read_warning(self, line: Line, number: int, at: str) -> None:
        self._account.spend(records=1)
        if found := _MODIFY.search(line.text):
            gid, peer_gid = found[2].rstrip(","), found[3].rstrip(",")
            self._add_failed(line, number, at, TIMED_OUT, short_name(found[1]), peer_gid, gid, peer_gid)
        elif found := _PEER.search(line.text):
            self._read_completion(found[1] or "", line, number, at)
        elif (event := _PORT.search(line.text)) and _BAD_PORT.search(event[2]):
            words = f"{event[1] or 'a NIC'}: {event[2].strip()}"
            self._add("port", words, line, number, at)
        else:
            broken = bool(_BROKEN.search(line.text))
            if broken and (closer := _CLOSER.search(line.text)):
                self.closed.setdefault(address(closer[1]), set()).add((line.host, line.pid))
            self._add("nccl", line.text, line, number, at, consequence=broken)

    def _read_completion(self, peer: str, line: Line, number: int, at: str) -> None:
        text = line.text
        status, vendor, ends, hca = (form.search(text) for form in (_STATUS, _VENDOR, _ENDS, _HCA))
        gid, peer_gid = (ends[1], ends[2]) if ends else ("", "")
        code, nic = int(status[1]) if status else -1, short_name(hca[1]) if hca else ""
        self._add_failed(line, number, at, code, nic, peer, gid, peer_gid, integer(vendor[1]) if vendor else -1)

    def _add_failed(
        self, line: Line, number: int, at: str, code: int, nic: str, peer: str, gid: str, peer_gid: str,
        vendor: int = -1,
    ) -> None:  # fmt: skip
        gid, peer_gid, peer = (address(one) if one else "" for one in (gid, peer_gid, peer))
        key = line.host or gid, nic, peer, peer_gid, code
        before = self._failed.get(key)
        self._failed[key] = FailedConnection(
            self._file, line.host, nic, peer, code, gid, peer_gid, vendor,
            1 + (before.times if before else 0), before.at if before else at, line.pid,
        )  # fmt: skip
        if before is None:
            towards = peer + (f" ({peer_gid})" if peer_gid and peer_gid != peer else "")
            words = f"{nic or 'a NIC'} to {towards or 'a peer'}: {STATUSES.get(code, f'status {code}')}"
            self._add("connection", words, line, number, at, consequence=code == FLUSHED)

    def _add(self, what: str, words: str, line: Line, number: int, at: str, *, consequence: bool = False) -> None:
        rank = line.rank if line.rank >= 0 else self._ranks.get((line.host, line.pid), -1)
        self.events.append(
            LogEvent(self._file, number, what, short_words(words), rank, line.host, line.pid, at, consequence)
        )

    @property
    def failed(self) -> tuple[FailedConnection, ...]:
        """The failed connections, each with how often it was reported."""
        return tuple(self._failed.values())

    def nics(self) -> dict[str, str]:
        """NICs as `HOST/NAME` by their GIDs."""
        known = {gid: self._nic(host, number) for gid, (host, number) in self._gids.items()}
        return known | {one.gid: f"{one.host}/{one.nic}" for one in self._failed.values()
                        if one.gid and one.nic and one.host}  # fmt: skip

    def _nic(self, host: str, number: int) -> str:
        return f"{host}/{self._devices.get((host, number), number)}"

    def starts(self) -> Iterator[CommStart]:
        """The communicators, with the ranks in them that have begun and completed their initialisation."""
        for (comm, size), (begun, completed) in self._starts.items():
            yield CommStart(comm, size, tuple(sorted(begun | completed)), tuple(sorted(completed)))

    def carried(self) -> Iterator[tuple[str, int, int]]:
        """NICs, each with two ranks of a communicator: the first sends to the second by it."""
        return ((self._nic(host, number), one, other) for host, number, one, other in sorted(self._channels))


def address(written: str) -> str:
    """An address in its usual form, IPv4 where it is mapped; any other text as it is."""
    try:
        found = ipaddress.ip_address(written.partition("%")[0])
    except ValueError:
        return short_name(written)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def _gid(subnet: str, interface: str) -> str:
    """The address that both halves of a GID are, each written as a number in little-endian order."""
    raw = int(subnet, 16).to_bytes(8, "little") + int(interface, 16).to_bytes(8, "little")
    return address(str(ipaddress.IPv6Address(raw)))
