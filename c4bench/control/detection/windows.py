"""Which rows of a host's window belong to which attempt. What its names stand for is looked up when they change."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from c4bench.control.jobs.job import Job
from c4bench.model.telemetry import RankRecord
from c4bench.model.window import HostNames, Window
from c4bench.model.window_columns import ARRIVAL_ROW, CONN_ROW, OP_ROW

_TABLES = (
    ("op_table", OP_ROW, "caller", "callers"),
    ("conn_table", CONN_ROW, "end", "sends"),
    ("arrival_table", ARRIVAL_ROW, "end", "receives"),
)


class _Named(NamedTuple):
    """Names of a host as it sent them; without ends that send from other hosts' NICs; and those of each attempt."""

    sent: HostNames
    own: HostNames
    of: dict[str, HostNames]


class _Ranked(NamedTuple):
    """Ranks as a host sent them, and the jobs that they are said to be of; those that run there, all and by attempt."""

    sent: tuple[RankRecord, ...]
    jobs: dict[str, Job | None]
    own: tuple[RankRecord, ...]
    of: dict[str, tuple[RankRecord, ...]]


class WindowParts:
    """Cuts windows into the parts of the attempts in `jobs`."""

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        self._jobs = jobs
        self._named: dict[str, _Named] = {}
        self._ranked: dict[str, _Ranked] = {}

    def own(self, window: Window) -> tuple[Window, int]:
        """The window without the records of ranks that run on other hosts, and of QPs of other hosts' NICs.

        Also says how many these were.
        """
        named, ranked = self._names(window), self._ranks(window)
        foreign = len(window.ranks) - len(ranked.own)
        own = msgspec.structs.replace(window, ranks=ranked.own) if foreign else window
        if named.own is not window.names:
            own = _only(own, named.own)
            foreign += (len(window.conn_table) - len(own.conn_table)) // CONN_ROW.itemsize
        return own, foreign

    def parts(self, window: Window) -> dict[str, Window]:
        """The parts of a host's own window by attempt, in order of their names; records keep their order."""
        named = self._names(window)
        found: dict[str, Window] = {}
        for attempt, ranks in self._ranks(window).of.items():
            if attempt not in named.of:
                named.of[attempt] = _of_attempt(named.own, attempt)
            names = named.of[attempt]
            part = window if len(ranks) == len(window.ranks) else msgspec.structs.replace(window, ranks=ranks)
            found[attempt] = part if names is part.names else _only(part, names)
        return found

    def _names(self, window: Window) -> _Named:
        named = self._named.get(window.host)
        if named is None or (window.names is not named.sent and window.names is not named.own):
            named = self._named[window.host] = _Named(window.names, _from_here(window.names, window.host), {})
        return named

    def _ranks(self, window: Window) -> _Ranked:
        """What is known of the window's ranks; it is looked up when they or their jobs change."""
        ranked = self._ranked.get(window.host)
        if ranked is None or window.ranks not in (ranked.sent, ranked.own) or not self._same(ranked.jobs):
            jobs = {rank.job: self._jobs.get(rank.job) for rank in window.ranks}
            own = tuple([rank for rank in window.ranks if _runs_on(window.host, rank, jobs[rank.job])])
            attempts = sorted({rank.job for rank in own if jobs[rank.job] is not None})
            of = {attempt: tuple([rank for rank in own if rank.job == attempt]) for attempt in attempts}
            ranked = self._ranked[window.host] = _Ranked(window.ranks, jobs, own, of)
        return ranked

    def _same(self, jobs: Mapping[str, Job | None]) -> bool:
        return all(self._jobs.get(name) is job for name, job in jobs.items())


def _runs_on(host: str, rank: RankRecord, job: Job | None) -> bool:
    return job is None or rank.rank in job.ranks_by_host.get(host, ())


def _from_here(names: HostNames, host: str) -> HostNames:
    """The names without sending ends at other hosts' NICs; the same object if there are none."""
    prefix = f"{host}/"
    sends = tuple([end if end is None or end.source.startswith(prefix) else None for end in names.sends])
    return names if sends == names.sends else msgspec.structs.replace(names, sends=sends)


def _of_attempt(names: HostNames, attempt: str) -> HostNames:
    """The names of an attempt's communicators and of what is in them; the same object if there are no others."""
    comms = tuple([record if record is not None and record.job == attempt else None for record in names.comms])
    known = {record.comm for record in comms if record is not None}

    def of(sort: Iterable[Any]) -> tuple[Any, ...]:
        return tuple([name if name is not None and name.comm in known else None for name in sort])

    own = HostNames(comms, of(names.callers), of(names.sends), of(names.receives), names.calls)
    return names if own == names else own


def _only(window: Window, names: HostNames) -> Window:
    """The window with the rows that have these names."""
    tables: dict[str, bytes] = {}
    for table, row, number, sort in _TABLES:
        rows = np.frombuffer(getattr(window, table), row)
        named = np.array([*(name is not None for name in getattr(names, sort)), False])
        kept = named[np.clip(rows[number].astype(np.int64), -1, len(named) - 1)]
        if table == "op_table":
            tables["awaits"] = _kept_awaits(window.awaits, rows["awaits"].tolist(), kept.tolist())
        tables[table] = rows[kept].tobytes()
    return msgspec.structs.replace(window, names=names, **tables)


def _kept_awaits(awaits: bytes, lengths: Collection[int], kept: Collection[bool]) -> bytes:
    at, parts = 0, []
    for length, keeps in zip(lengths, kept, strict=True):
        parts += [awaits[at : at + length]] * keeps
        at += length
    return b"".join(parts)
