"""Logs of jobs: what NCCL, PyTorch, UCX, MPI and launchers wrote among all else, by one rank or by thousands together.

Few lines of a log tell of a failure. These have one of some words (`NEEDLES`), which are looked for in whole blocks of
bytes; only lines that have one are decoded, freed of prefixes, and read. So a log of any length is read as a stream.
"""

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Protocol

from c4bench.budget import LOG, Account, OverBudgetError
from c4bench.decoding import DecodingError, from_json
from c4bench.evidence import exits, mpi_log, nccl_log, watchdog
from c4bench.evidence.limits import NothingToldError
from c4bench.evidence.lines import LONGEST_LINE, plain
from c4bench.model.evidence import LogEvent, LogFacts, Problem, Reading, SourceFile

FORMAT = "log"
NEEDLES = (*watchdog.NEEDLES, *nccl_log.NEEDLES, *mpi_log.NEEDLES, *exits.NEEDLES)
_CANNOT = (
    "logs: a rank without a line may be where the others wait, or its log is not here; a rank that waits says so, the "
    "one that holds it up need not"
)
_CANNOT_REPEATED = "logs: Ray left out lines that were like others, so that ranks without a line may have had one"
_LEFT_OUT = re.compile(r"\[repeated \d{1,9}x across cluster\]")
_BLOCK = 4 << 20
_HEAD = 4096
# A line that Docker, or another shipper of logs, has put into JSON.
_SHIPPED = re.compile(rb'\{[^\n]{0,4000}?"(?:log|message|msg|MESSAGE)"\s?:')
_MESSAGES = ("log", "message", "msg", "MESSAGE")
# A file of one rank, whose lines need not say so.
_OF_RANK = re.compile(r"rank[_.-]?(\d{1,6})(?!\d)", re.IGNORECASE)
_END = re.compile(rb"[\r\n]")
# What begins a line that is told apart by its end.
_BROKEN_OFF = re.compile(
    rb"Watchdog caught(?!.*Timeout\(ms\)=\d+\))|ast enqueued(?!.*ast completed .*\d)|noticed that process rank "
)
_MOST_WRAPPED = 4
_ZEROS = re.compile(rb"\0{8,}")
_FORMATS = (b"{", b"[{", b"\x80", b"PK", b"\x1f\x8b")


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, at most so many; none at the end."""


def recognises(data: bytes, _name: str) -> bool:
    """Whether `data` is text in which any line tells of a failure, or of NICs and ranks."""
    return is_text(data) and any(needle in data for needle in NEEDLES)


def is_text(data: bytes) -> bool:
    """Whether `data` begins as text does, and not as a file of another kind, such as JSON."""
    # A host that fails leaves blocks of zeros in its logs.
    head = _ZEROS.sub(b"", data[:_HEAD]).lstrip()
    return bool(head) and b"\0" not in head and (bool(_SHIPPED.match(head)) or not head.startswith(_FORMATS))


def read(data: bytes, file: str) -> Reading:
    """What all lines of `data` tell. Raises UnreadableError if none does."""
    return _read(_blocks_of(data), file)


def read_stream(stream: Readable, file: str) -> Reading:
    """What all lines of a stream tell, however long it is. Raises UnreadableError if none does."""
    return _read(_blocks(stream), file)


class _Log:
    """What the lines of one file tell, each to the first reader that knows it."""

    def __init__(self, file: str) -> None:
        self.file = file
        named = _OF_RANK.search(PurePath(file).name)
        self._rank = int(named[1]) if named else -1
        account = self.account = Account(file, LOG)
        self.watchdog, self.nccl = watchdog.Watchdog(file, account), nccl_log.NcclLog(file, account)
        self.mpi, self.exits = mpi_log.MpiLog(file, account), exits.Exits(file, account)
        self._readers = (self.watchdog.read, self.nccl.read, self.mpi.read, self.exits.read)
        self.spoke_on: dict[int, str] = {}
        self.known = 0
        self.shortened = False

    def read(self, written: bytes, number: int) -> bool:
        """Read a line; False if no reader knows it. Raises OverBudgetError."""
        line = plain(_text(written))
        if line.rank < 0 <= self._rank:
            line = line._replace(rank=self._rank)
        if not any(reads(line, number) for reads in self._readers):
            return False
        self.known += 1
        self.shortened = self.shortened or bool(_LEFT_OUT.search(line.text))
        if line.rank >= 0:
            self.spoke_on[line.rank] = line.host or self.spoke_on.get(line.rank, "")
        return True

    def reading(self, problems: tuple[Problem, ...]) -> Reading:
        """All of it."""
        timeouts, events, members = self.watchdog.timeouts(), self._events(), self.watchdog.members(FORMAT)
        named = [(one.rank, one.host) for one in timeouts] + [(one.rank, one.host) for one in members]
        for rank, host in named + [(one.rank, one.host) for one in events]:
            if rank >= 0:
                self.spoke_on[rank] = self.spoke_on.get(rank) or host
        facts = LogFacts(
            self.file, events, (*self.nccl.failed, *self.mpi.failed), tuple(self.nccl.starts()), self.nccl.names,
            self.nccl.nics(), tuple(self.nccl.carried()), self.spoke_on,
            members,
            {peer: tuple(f"{host}:{pid}" for host, pid in sorted(by)) for peer, by in self.nccl.closed.items()},
        )  # fmt: skip
        ranks = max((one.size for one in timeouts if one.comm == "0"), default=0)
        source = SourceFile(self.file, FORMAT, "", tuple(sorted(self.spoke_on)))
        cannot = (_CANNOT, _CANNOT_REPEATED) if self.shortened else (_CANNOT,)
        return Reading((), (source,), problems, cannot, ranks, timeouts=timeouts, logs=(facts,))

    def _events(self) -> tuple[LogEvent, ...]:
        every = (*self.watchdog.events, *self.nccl.events, *self.mpi.events, *self.exits.events)
        return tuple(sorted(every, key=lambda one: one.line))


def _read(blocks: Iterator[bytes], file: str) -> Reading:
    log, number, problems = _Log(file), 1, list[Problem]()
    try:
        for block in blocks:
            log.account.spend(bytes=len(block))
            log.account.check_time()
            at = 0
            for begin, end in _lines(block):
                number += block.count(b"\n", at, begin)
                at = begin
                line = block[begin:end]
                if not log.read(line, number) and _BROKEN_OFF.search(line):
                    any(log.read(whole, number) for whole in _joined(line, block[end : end + LONGEST_LINE]))
            number += block.count(b"\n", at)
    except OverBudgetError as error:
        problems.append(
            Problem(file, f"{str(error).removeprefix(f'{file}: ')}; the rest is not used", f"line {number}")
        )
    if not log.known:
        raise NothingToldError("no line of this text tells of ranks, operations, NICs or exits")
    return log.reading(tuple(problems))


def _lines(block: bytes) -> Iterator[tuple[int, int]]:
    """Where lines that have a needle begin and end, in order; of a line that is too long, what is around the needle."""
    found: dict[int, int] = {}
    for needle in NEEDLES:
        at = block.find(needle)
        while at >= 0:
            least = max(0, at - LONGEST_LINE // 2)
            begin = max(least, 1 + max(block.rfind(b"\n", least, at), block.rfind(b"\r", least, at)))
            cut = _END.search(block, at, at + LONGEST_LINE // 2)
            end = cut.start() if cut else min(at + LONGEST_LINE // 2, len(block))
            found[begin] = end
            at = block.find(needle, end)
    return iter(sorted(found.items()))


def _joined(line: bytes, after: bytes) -> Iterator[bytes]:
    """A line with those after it, as if a terminal or its program had wrapped it."""
    for more in after.splitlines()[1 : 1 + _MOST_WRAPPED]:
        if b"[rank" in more:
            return
        yield line + b" " + more
        line += more
        yield line


def _blocks_of(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        end = data.rfind(b"\n", at, at + _BLOCK) + 1 if at + _BLOCK < len(data) else len(data)
        end = end if end > at else min(at + _BLOCK, len(data))
        yield data[at:end]
        at = end


def _blocks(stream: Readable) -> Iterator[bytes]:
    """Blocks that end with a line; a line longer than a block is cut."""
    left = b""
    while piece := stream.read(_BLOCK):
        block = left + piece
        end = block.rfind(b"\n") + 1
        if not end and len(block) < 2 * _BLOCK:
            left = block
            continue
        end = end or len(block)
        yield block[:end]
        left = block[end:]
    if left:
        yield left


def _text(written: bytes) -> str:
    """A line as text; one that a shipper has put into JSON is taken out of it."""
    if written.startswith(b"{"):
        try:
            shipped = from_json(written, dict[str, object])
        except DecodingError:
            shipped = {}
        for name in _MESSAGES:
            if isinstance(found := shipped.get(name), str):
                return found
    return written[:LONGEST_LINE].decode("utf-8", "replace")
