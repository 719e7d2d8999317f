"""Which rows of a host's window belong to which attempt. What its names stand for is looked up when they change."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from c4bench.control.jobs import Job
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


class WindowParts:
    """Cuts windows into the parts of the attempts in `jobs`."""

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        self._jobs = jobs
        self._named: dict[str, _Named] = {}

    def own(self, window: Window) -> tuple[Window, int]:
        """The window without the records of ranks that run on other hosts, and of QPs of other hosts' NICs.

        Also says how many these were.
        """
        host, named = window.host, self._names(window)
        ranks = tuple([record for record in window.ranks if self._runs_here(record, host)])
        own = window if len(ranks) == len(window.ranks) else msgspec.structs.replace(window, ranks=ranks)
        if named.own is not window.names:
            own = _only(own, named.own)
        size = CONN_ROW.itemsize
        foreign = len(window.ranks) - len(ranks) + (len(window.conn_table) - len(own.conn_table)) // size
        return own, foreign

    def parts(self, window: Window) -> dict[str, Window]:
        """The parts of a host's own window by attempt, in order of their names; records keep their order."""
        named, attempts = self._names(window), sorted({rank.job for rank in window.ranks} & self._jobs.keys())
        found: dict[str, Window] = {}
        for attempt in attempts:
            if attempt not in named.of:
                named.of[attempt] = _of_attempt(named.own, attempt)
            names, ranks = named.of[attempt], tuple([rank for rank in window.ranks if rank.job == attempt])
            part = window if len(ranks) == len(window.ranks) else msgspec.structs.replace(window, ranks=ranks)
            found[attempt] = part if names is part.names else _only(part, names)
        return found

    def _names(self, window: Window) -> _Named:
        named = self._named.get(window.host)
        if named is None or (window.names is not named.sent and window.names is not named.own):
            named = self._named[window.host] = _Named(window.names, _from_here(window.names, window.host), {})
        return named

    def _runs_here(self, record: RankRecord, host: str) -> bool:
        job = self._jobs.get(record.job)
        return job is None or record.rank in job.ranks_by_host.get(host, ())


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
