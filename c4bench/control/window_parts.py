"""Which records of a host's window belong to which attempt. Each record is looked at once."""

from collections.abc import Collection, Mapping
from typing import TypeVar

import msgspec

from c4bench.control.jobs import Job
from c4bench.model.telemetry import ArrivalRecord, CommRecord, ConnRecord, OpRecord, RankRecord, Window

_Layer = TypeVar("_Layer", CommRecord, OpRecord, ConnRecord, ArrivalRecord)


def own_records(window: Window, jobs: Mapping[str, Job]) -> Window:
    """The window without the records of ranks that run on other hosts, and of QPs of other hosts' NICs."""

    def runs_here(record: RankRecord) -> bool:
        job = jobs.get(record.job)
        return job is None or record.rank in job.ranks_by_host.get(window.host, ())

    prefix = f"{window.host}/"
    ranks = tuple([record for record in window.ranks if runs_here(record)])
    conns = tuple([record for record in window.conns if record.source.startswith(prefix)])
    if len(ranks) == len(window.ranks) and len(conns) == len(window.conns):
        return window
    return msgspec.structs.replace(window, ranks=ranks, conns=conns)


def parts(window: Window, attempts: Collection[str]) -> dict[str, Window]:
    """The parts of a host's window by attempt, in order of these `attempts`; records keep their order."""
    of_comm: dict[str, tuple[str, ...]] = {}
    for record in window.comms:
        known = of_comm.get(record.comm, ())
        if record.job not in known and record.job in attempts:
            of_comm[record.comm] = (*known, record.job)
    ranks: dict[str, list[RankRecord]] = {attempt: [] for attempt in attempts}
    for rank in window.ranks:
        if rank.job in ranks:
            ranks[rank.job].append(rank)
    comms, ops = _by_attempt(window.comms, of_comm, attempts), _by_attempt(window.ops, of_comm, attempts)
    conns, arrivals = _by_attempt(window.conns, of_comm, attempts), _by_attempt(window.arrivals, of_comm, attempts)
    return {
        attempt: Window(
            window.host,
            window.sequence,
            window.start_s,
            window.end_s,
            tuple(comms[attempt]),
            tuple(ranks[attempt]),
            tuple(ops[attempt]),
            tuple(conns[attempt]),
            tuple(arrivals[attempt]),
            window.nics,
        )
        for attempt in attempts
    }


def _by_attempt(
    layer: tuple[_Layer, ...], of_comm: Mapping[str, tuple[str, ...]], attempts: Collection[str]
) -> dict[str, list[_Layer]]:
    found: dict[str, list[_Layer]] = {attempt: [] for attempt in attempts}
    for record in layer:
        for attempt in of_comm.get(record.comm, ()):
            found[attempt].append(record)
    return found
