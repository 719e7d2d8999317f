"""The ranks on an agent's host, and their telemetry as a window."""

import asyncio
import itertools
import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from c4bench.agent.attached import AttachedRanks
from c4bench.agent.spawner import Exited, ProcessStat, Started
from c4bench.collective.ring_reader import RankTables, TelemetryReader
from c4bench.errors import C4Error
from c4bench.model.agent import AgentConfig
from c4bench.model.telemetry import RankRecord
from c4bench.model.window import Numbering, Window
from c4bench.verbs.counters import PortReader
from c4bench.wire.job_names import is_check
from c4bench.wire.messages import JobSpec, StartRanks

_logger = logging.getLogger(__name__)


class _Rank(msgspec.Struct):
    """Its process counts as running until the spawner has sent the exit code."""

    job: str
    rank: int
    pid: int
    stat: ProcessStat
    code: int | None = None
    reader: TelemetryReader | None = None


class Ranks:
    """Every rank of every job on this host, until its job is stopped; `attached` are those of other programs."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._ranks: list[_Rank] = []
        self._jobs: dict[str, JobSpec] = {}
        self._sequence = itertools.count()
        self._numbering = Numbering()
        self.attached = AttachedRanks(config, self._numbering)
        # By reader: the changes of its names when numbers were freed last.
        self._changes: list[tuple[TelemetryReader, int]] = []
        alone = len(config.nics) == 1
        self._gauges = [
            PortReader(nic.name, nic.device, netdevs=nic.bond or (nic.netdev,), alone=alone) for nic in config.nics
        ]
        self.unreadable = 0  # telemetry files that did not exist yet or were damaged

    def admit(self, request: StartRanks) -> list[int]:
        """Note the job; return the requested ranks that do not run here yet."""
        self._jobs[request.job.id] = request.job
        here = {rank.rank for rank in self._ranks if rank.job == request.job.id}
        return [rank for rank in request.ranks if rank not in here]

    def alive(self) -> tuple[StartRanks, ...]:
        """The jobs that have ranks here, each with those that live."""
        alive = {job: tuple(r.rank for r in self._ranks if r.job == job and r.code is None) for job in self._jobs}
        return tuple(StartRanks(self._jobs[job], ranks) for job, ranks in alive.items() if ranks)

    def logs(self) -> list[Path]:
        """The files that running ranks print to."""
        return [log_of(self._config.state, rank.job, rank.rank) for rank in self._ranks if rank.code is None]

    def started(self, report: Started) -> None:
        """Note that the spawner has started a rank."""
        self._ranks.append(_Rank(report.job, report.rank, report.pid, ProcessStat(report.pid)))
        fields = {"attempt": report.job, "rank": report.rank, "pid": report.pid}
        level = _level(report.job)
        _logger.log(level, "%s: rank %d runs as process %d", report.job, report.rank, report.pid, extra=fields)

    def exited(self, report: Exited) -> None:
        """Note that a rank's process has ended; it stays in the windows, so that C4D sees its end."""
        for rank in self._ranks:
            if rank.pid == report.pid:
                rank.code = report.code
                fields = {"attempt": rank.job, "rank": rank.rank, "exit_code": report.code}
                level = logging.WARNING if report.code else _level(rank.job)
                _logger.log(level, "%s: rank %d ended with code %d", rank.job, rank.rank, report.code, extra=fields)

    def stop(self, job: str) -> None:
        """Kill the job's ranks and remove their files in shared memory."""
        for rank in self._ranks:
            if rank.job == job and rank.code is None:
                # It may just have ended by itself.
                with suppress(ProcessLookupError):
                    os.kill(rank.pid, signal.SIGKILL)
        mine = [rank for rank in self._ranks if rank.job == job]
        if mine:
            fields = {"attempt": job}
            _logger.log(_level(job), "%s stopped on this host: %d ranks", job, len(mine), extra=fields)
        for rank in mine:
            rank.stat.close()
        self._ranks = [rank for rank in self._ranks if rank.job != job]
        self._jobs.pop(job, None)
        shutil.rmtree(Path(self._config.rings) / job, ignore_errors=True)

    def window(self, start_s: float, end_s: float) -> Window:
        """Combine the records of all ranks into the window of this interval."""
        tables = [table for rank in self._ranks if (table := self._read(rank, start_s)) is not None]
        tables += self.attached.tables(start_s)
        self._free_numbers()
        return Window(
            self._config.name,
            next(self._sequence),
            start_s,
            end_s,
            self._numbering.names,
            (*[self._record(rank) for rank in self._ranks], *self.attached.records()),
            b"".join([table.op_table for table in tables]),
            b"".join([table.awaits for table in tables]),
            b"".join([table.conn_table for table in tables]),
            b"".join([table.arrival_table for table in tables]),
            tuple([gauge.read() for gauge in self._gauges]),
        )

    def _read(self, rank: _Rank, start_s: float) -> RankTables | None:
        """The tables of a rank; None if its file does not exist yet or is damaged."""
        try:
            if rank.reader is None:
                rank.reader = TelemetryReader(self._config.ring(rank.job, rank.rank), self._numbering)
            return rank.reader.read(start_s)
        except C4Error:
            self.unreadable += 1
            return None

    def _free_numbers(self) -> None:
        """Free the numbers of communicators and connections that have ended, if any may have."""
        readers = [rank.reader for rank in self._ranks if rank.reader is not None] + self.attached.readers()
        changes = [(reader, reader.changes) for reader in readers]
        if changes == self._changes:
            return
        self._changes = changes
        numbers = self._numbering
        numbers.comms.keep(record for reader in readers for record in reader.comms)
        numbers.callers.keep(caller for reader in readers for caller in reader.callers)
        numbers.sends.keep(end for reader in readers for end in reader.sends)
        numbers.receives.keep(end for reader in readers for end in reader.receives)

    def _record(self, rank: _Rank) -> RankRecord:
        if rank.code is None:
            return RankRecord(rank.job, rank.rank, self._config.name, rank.pid, rank.stat.state())
        state = "killed" if rank.code < 0 else "exited"
        return RankRecord(rank.job, rank.rank, self._config.name, rank.pid, state, rank.code)

    @property
    def any(self) -> bool:
        """Whether there are ranks to report."""
        return bool(self._ranks) or self.attached.any


def _level(job: str) -> int:
    return logging.DEBUG if is_check(job) else logging.INFO


AT_MOST_BYTES = 64 << 20
_EVERY_S = 60.0


async def rotate(logs: Callable[[], Iterable[Path]], at_most_bytes: int = AT_MOST_BYTES) -> None:
    """Every minute, keep the `logs` that ranks write now below `at_most_bytes`, until cancelled."""
    while True:
        await asyncio.sleep(_EVERY_S)
        for path in logs():
            if _size(path) > at_most_bytes:
                await asyncio.to_thread(_rotate, path)


def log_of(state: str, job: str, rank: int) -> Path:
    """The file that a rank prints to, in the agent's `state` folder."""
    return Path(state) / f"{job}-{rank}.log"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _rotate(path: Path) -> None:
    """Move what is in a file to `NAME.1`, which is replaced; whoever appends to the file goes on at its beginning."""
    older = path.with_name(f"{path.name}.1")
    try:
        shutil.copyfile(path, older)
        with path.open("rb+") as file:
            file.truncate()
    except OSError as error:
        _logger.warning("%s is not rotated: %s; free space on its disk", path, error.strerror)
