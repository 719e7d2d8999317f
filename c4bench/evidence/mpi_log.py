"""Failed connections in the words of UCX and of Open MPI's own InfiniBand transport.

Source: `ib_mlx5_log.c` and `ib_log.c` of UCX 1.5 to 1.19, `btl_openib_component.c` of Open MPI 1.4 to 4. UCX writes
the error with the NIC, and after it the request with the peer's QP and, on RoCE, its GID; InfiniBand has only a LID.
"""

import re

from msgspec.structs import replace

from c4bench.budget import Account
from c4bench.evidence.limits import short_name, short_words
from c4bench.evidence.lines import Line
from c4bench.evidence.nccl_log import FLUSHED, STATUSES, UNANSWERED, address
from c4bench.evidence.watchdog import written_at
from c4bench.model.evidence import FailedConnection, LogEvent

NEEDLES = (b"ib_mlx5_log.c", b"ib_log.c", b"UCX  ERROR", b" error polling ")
_UCX = re.compile(
    r"(?<![\w.:-])([\w.-]{1,253}):(\d{1,9})\s*(?::\d{1,9}){0,2}\s*\]\s+\w{1,40}\.c:\d{1,6}\s+(?:UCX  ERROR\s+)?(.*)"
)
_ON = re.compile(r"([A-Z].{1,60}?) on (\S{1,64}?):\d{1,3}/(?:RoCE|IB) \(synd 0x([\da-f]{1,4}) vend 0x([\da-f]{1,4})")
_REQUEST = re.compile(
    r"QP 0x[\da-f]{1,8} wqe\[\d{1,9}\]: .{0,200}?\[rqpn 0x[\da-f]{1,8} "
    r"(?:[^\]]{0,200}?\bdgid[ =]([^\s\]]{1,64})|[rd]lid[ =](\d{1,9}))"
)
_OPENIB = re.compile(
    r"from (\S{1,253}) to: (\S{1,253}) error polling \w{1,8} CQ with status .{1,60}? status number (\d{1,3})"
)
_CODES = {"Transport retry count exceeded": UNANSWERED, "Work Request Flushed Error": FLUSHED}


class MpiLog:
    """What the lines of one file tell."""

    def __init__(self, file: str, account: Account) -> None:
        self._file, self._account = file, account
        self._open: dict[tuple[str, int], FailedConnection] = {}
        self._done: dict[tuple[str, str, str, int], FailedConnection] = {}
        self.events: list[LogEvent] = []

    def read(self, line: Line, number: int) -> bool:
        """Read line `number`; False if it is none of these. Raises OverBudgetError."""
        if found := _OPENIB.search(line.text):
            failed = FailedConnection(self._file, found[1], "", found[2], int(found[3]), at=written_at(line))
            self._add(failed, line, number)
            return True
        ucx = _UCX.search(line.text)
        if ucx is None:
            return False
        host, pid, words = ucx[1], int(ucx[2]), ucx[3]
        if on := _ON.search(words):
            code = next((code for word, code in _CODES.items() if on[1].startswith(word)), -1)
            self._close(host, pid)
            failed = FailedConnection(
                self._file, host, short_name(on[2]), "", code, vendor=int(on[4], 16), at=written_at(line), pid=pid
            )
            self._open[host, pid] = failed
            self._add_event(failed, on[1], line, number)
        elif (request := _REQUEST.search(words)) and (host, pid) in self._open:
            peer_gid = address(request[1]) if request[1] else f"LID {request[2]}"
            self._open[host, pid] = replace(self._open[host, pid], peer=peer_gid, peer_gid=peer_gid)
            self._close(host, pid)
        elif "UCX  ERROR" in line.text:
            self._account.spend(records=1)
            self.events.append(LogEvent(self._file, number, "ucx", short_words(words), line.rank, host, pid, line.at))
        return True

    def _add(self, failed: FailedConnection, line: Line, number: int) -> None:
        self._add_event(failed, STATUSES.get(failed.status, f"status {failed.status}"), line, number)
        self._open[failed.host, failed.pid] = failed
        self._close(failed.host, failed.pid)

    def _add_event(self, failed: FailedConnection, what: str, line: Line, number: int) -> None:
        self._account.spend(records=1)
        words = short_name(f"{failed.nic or 'a NIC'} to {failed.peer or 'a peer'}: {what}")
        self.events.append(
            LogEvent(self._file, number, "connection", words, line.rank, failed.host, failed.pid, failed.at,
                     consequence=failed.status == FLUSHED)
        )  # fmt: skip

    def _close(self, host: str, pid: int) -> None:
        """Keep what is known of the newest failure of a process, whether its request followed or not."""
        one = self._open.pop((host, pid), None)
        if one is not None:
            key = one.host, one.nic, one.peer, one.status
            before = self._done.get(key)
            self._done[key] = replace(before, times=before.times + 1) if before else one

    @property
    def failed(self) -> tuple[FailedConnection, ...]:
        """The failed connections, each with how often it was reported."""
        for host, pid in list(self._open):
            self._close(host, pid)
        return tuple(self._done.values())
