"""Processes on an agent's host that it has not started: their ends, and their telemetry for its windows."""

import asyncio
import fcntl
import logging
import os
import struct
from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from c4bench.agent.spawner import ProcessStat
from c4bench.attach.server import AttachedProcess, open_records, record_files
from c4bench.budget import ATTACHED
from c4bench.collective.ring_layout import CommEntry
from c4bench.collective.ring_reader import RankTables, TelemetryCopy, TelemetryReader
from c4bench.errors import C4Error, UsageError
from c4bench.model.agent import AgentConfig
from c4bench.model.telemetry import CommRecord, Member, RankRecord
from c4bench.model.window import NUMBERS_AT_MOST, Numbering, Numbers
from c4bench.wire.messages import Attached, AttachedRank, Seated

_logger = logging.getLogger(__name__)
_Name = TypeVar("_Name", bound=Hashable)

# A process that has ended is listed for this long (s), so that C4D sees its end.
_KEPT_S = 2.0
# How often (s) a process that asks for a path looks whether its rank is known.
_SEATED_S = 0.01
# Its exit is known once its parent has asked for it, which is looked for so often, and so many times.
_LOOK_S, _LOOKS = 0.05, 20
# linux/pidfd.h: PIDFD_GET_INFO of Linux 6.15 or later. Mask first, exit status last.
_GET_INFO = 3 << 30 | 64 << 16 | 0xFF << 8 | 11
_INFO_EXIT = 1 << 3
_INFO = struct.Struct("<Q52xi")

_NAME_AT_MOST = 128
_MEMBERS_AT_MOST = 4_096


class _HalfNumbers(Numbers[_Name]):
    """The numbers of a host's own ranks, of which other programs get no more than half."""

    def __init__(self, shared: Numbers[_Name]) -> None:
        super().__init__()
        self._shared = shared

    def number(self, name: _Name, at_most: int = NUMBERS_AT_MOST // 2) -> int:
        return self._shared.number(name, at_most)


def _half_of(shared: Numbering) -> Numbering:
    numbering = Numbering()
    numbering.comms, numbering.callers = _HalfNumbers(shared.comms), _HalfNumbers(shared.callers)
    numbering.sends, numbering.receives = _HalfNumbers(shared.sends), _HalfNumbers(shared.receives)
    numbering.calls = _HalfNumbers(shared.calls)
    return numbering


class _File:
    """A telemetry file of a process, which its owner may damage, cut or remove at any time."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.descriptor = descriptor
        self._path = path
        self._copy: TelemetryCopy | None = None
        self.reader: TelemetryReader | None = None

    @property
    def removed(self) -> bool:
        """Whether nobody can open it any more: its library has ended, and may make another one."""
        return not os.fstat(self.descriptor).st_nlink

    def read(self, numbering: Numbering, rename: Callable[[CommEntry], CommEntry], start_s: float) -> RankTables:
        """Its tables, for a window that begins at `start_s`. Raises UsageError for a damaged file."""
        if self._copy is None or self.reader is None:
            self._copy = TelemetryCopy(self._path, self.descriptor)
            self.reader = TelemetryReader(self._path, numbering, self._copy.memory, rename)
        else:
            self._copy.refresh()
        return self.reader.read(start_s)


class _Attached(msgspec.Struct):
    """A process; `rank` is None until the master has said which it is. `code` is None where nobody knows it.

    `files` are those that it has of its possible `paths`.
    """

    process: AttachedProcess
    descriptor: int
    stat: ProcessStat
    paths: tuple[Path, ...]
    files: dict[Path, _File]
    rank: int | None = None
    ended: bool = False
    code: int | None = None

    def close(self) -> None:
        """Close all its files."""
        self.stat.close()
        for descriptor in (self.descriptor, *(file.descriptor for file in self.files.values())):
            os.close(descriptor)


class AttachedRanks:
    """The attached processes of a host. `changed` is set when others than before are there, or one has ended."""

    def __init__(self, config: AgentConfig, numbering: Numbering) -> None:
        self._config, self._numbering = config, _half_of(numbering)
        self._here: dict[int, _Attached] = {}
        self._refused: dict[int, str] = {}
        self.changed = asyncio.Event()
        self.unreadable = 0  # telemetry files that were damaged

    def add(self, process: AttachedProcess, descriptor: int) -> None:
        """Follow a process until it ends. Raises UsageError for one that cannot be followed."""
        known = self._here.get(process.pid)
        if known is not None and not known.ended:
            os.close(descriptor)  # it has connected again
            return
        try:
            paths = self._check(process)
            files = {path: _File(path, open_records(path, process)) for path in paths[:1]}
        except UsageError:
            os.close(descriptor)
            raise
        if known is not None:
            self._forget(process.pid)
        self._here[process.pid] = one = _Attached(process, descriptor, ProcessStat(process.pid), paths, files)
        asyncio.get_running_loop().add_reader(descriptor, self._gone, one)
        self.changed.set()
        values = process.pid, process.uid, process.identity.job
        _logger.info("process %d of user %d is attached, job %s", *values, extra={"job": process.identity.job})

    def _check(self, process: AttachedProcess) -> tuple[Path, ...]:
        """The telemetry files that a process may have. Raises UsageError for one that is not taken."""
        who = f"process {process.pid}"
        if not process.identity.job:
            raise UsageError(f"{who} has no job; set C4BENCH_JOB, or start it with c4bench attach --job")
        if len(self._here) >= ATTACHED.records:
            raise UsageError(f"{who}: {ATTACHED.records} processes are attached on this host already")
        paths = record_files(Path(self._config.attach_records), process)
        if paths and any(one.paths == paths for one in self._here.values()):
            raise UsageError(f"{who}: its records are those of another process")
        return paths

    def _gone(self, one: _Attached, looks: int = 0) -> None:
        """A process has ended; how is known where the kernel says so, once the parent has asked as well."""
        if self._here.get(one.process.pid) is not one:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(one.descriptor)
        one.code = _exit_code(one.descriptor)
        if one.code is None and looks < _LOOKS:
            loop.call_later(_LOOK_S, self._gone, one, looks + 1)
            return
        one.ended = True
        self.changed.set()
        loop.call_later(_KEPT_S, self._forget_ended, one)
        self._remove_files(one)
        code = "an exit code that nobody knows" if one.code is None else f"code {one.code}"
        fields = {"job": one.process.identity.job, "exit_code": one.code}
        _logger.info("%s: process %d ended with %s", one.process.identity.job, one.process.pid, code, extra=fields)

    def _remove_files(self, one: _Attached) -> None:
        """Remove what a process that was killed has left."""
        for path in (*one.paths, *(ring.with_suffix(".qps") for ring in one.paths[:1])):
            with suppress(OSError):
                path.unlink()

    def _forget_ended(self, one: _Attached) -> None:
        if self._here.get(one.process.pid) is one:
            self._forget(one.process.pid)
            self.changed.set()

    def _forget(self, pid: int) -> None:
        self._here.pop(pid).close()
        self._refused.pop(pid, None)

    def close(self) -> None:
        """Forget all processes, which run on."""
        for one in self._here.values():
            asyncio.get_running_loop().remove_reader(one.descriptor)
        for pid in list(self._here):
            self._forget(pid)

    def listed(self) -> Attached:
        """All processes, for the master."""
        processes = [
            AttachedRank(pid, one.process.identity.job, one.process.identity.rank, one.ended)
            for pid, one in self._here.items()
        ]
        return Attached(self._config.nics[: ATTACHED.names], tuple(processes))

    def seat(self, seated: Seated) -> None:
        """Note what the master says of the processes."""
        for pid, one in self._here.items():
            one.rank = seated.ranks.get(pid, one.rank)
            reason = seated.refused.get(pid, "")
            if reason and self._refused.get(pid) != reason:
                self._refused[pid] = reason
                fields = {"job": one.process.identity.job}
                _logger.warning(
                    "%s: process %d is not followed: %s", one.process.identity.job, pid, reason, extra=fields
                )

    async def seated(self, pid: int) -> bool:
        """Whether the master follows a process, once it has said so."""
        while (one := self._here.get(pid)) and one.rank is None and pid not in self._refused:
            await asyncio.sleep(_SEATED_S)
        return one is not None and one.rank is not None

    @property
    def here(self) -> bool:
        """Whether there are processes, with or without a rank."""
        return bool(self._here)

    @property
    def any(self) -> bool:
        """Whether there are processes to report."""
        return any(one.rank is not None for one in self._here.values())

    def tables(self, start_s: float) -> list[RankTables]:
        """The tables of all files of processes whose ranks are known, for a window that begins at `start_s`."""
        return [table for one in self._here.values() for table in self._read(one, start_s)]

    def records(self) -> list[RankRecord]:
        """The states of processes whose ranks are known."""
        return [self._record(one, one.rank) for one in self._here.values() if one.rank is not None]

    def readers(self) -> list[TelemetryReader]:
        """What has read the telemetry so far."""
        files = (file for one in self._here.values() for file in one.files.values())
        return [file.reader for file in files if file.reader is not None]

    def _read(self, one: _Attached, start_s: float) -> list[RankTables]:
        if one.rank is None:
            return []
        if not one.ended:
            self._look_for_files(one)
        rename = renamed(one.process.identity.job, one.rank, self._config.name)
        tables = []
        for file in one.files.values():
            try:
                tables.append(file.read(self._numbering, rename, start_s))
            except C4Error:
                self.unreadable += 1
        return tables

    def _look_for_files(self, one: _Attached) -> None:
        """Open the files that libraries have made since, also in place of such as they have removed."""
        for path in one.paths:
            before = one.files.get(path)
            if before is None or before.removed:
                with suppress(UsageError):  # it is not there, or not the user's
                    one.files[path] = _File(path, open_records(path, one.process))
                    if before:
                        os.close(before.descriptor)

    def _record(self, one: _Attached, rank: int) -> RankRecord:
        job, pid = one.process.identity.job, one.process.pid
        if not one.ended:
            return RankRecord(job, rank, self._config.name, pid, one.stat.state())
        state = "killed" if one.code is not None and one.code < 0 else "exited"
        return RankRecord(job, rank, self._config.name, pid, state, one.code)


def renamed(job: str, rank: int, host: str) -> Callable[[CommEntry], CommEntry]:
    """Gives a process's communicators its job, and its own place in them its host and its rank in the job.

    Raises UsageError for names and sizes that no communicator has.
    """

    def rename(entry: CommEntry) -> CommEntry:
        record = entry.record
        if not (record.comm.isprintable() and 0 < len(record.comm) <= _NAME_AT_MOST):
            raise UsageError(f"a communicator's name is not of up to {_NAME_AT_MOST} printable characters")
        name = f"{job}/{record.comm}"
        if not record.members:
            return CommEntry(rank, CommRecord(name, job, ()))
        last = max(member.rank for member in record.members)
        if not 0 <= entry.rank <= last < _MEMBERS_AT_MOST:
            raise UsageError(f"a communicator's rank {entry.rank} of {last + 1}, of {_MEMBERS_AT_MOST} at most")
        own, others = Member(entry.rank, host, (), rank), (Member(last, "", ()),) if entry.rank < last else ()
        return CommEntry(entry.rank, CommRecord(name, job, (own, *others)))

    return rename


def _exit_code(descriptor: int) -> int | None:
    """How the process behind a pidfd has ended, a negative code for a signal; None where the kernel does not say."""
    info = bytearray(_INFO.size)
    _INFO.pack_into(info, 0, _INFO_EXIT, 0)
    try:
        fcntl.ioctl(descriptor, _GET_INFO, info)
    except OSError:
        return None
    mask, status = _INFO.unpack(info)
    return os.waitstatus_to_exitcode(status) if mask & _INFO_EXIT else None
