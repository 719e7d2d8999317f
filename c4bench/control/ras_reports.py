"""Reports of NCCL's RAS that agents pass on: judged together by job, and published as diagnoses.

A job here is one that NCCL runs and c4bench may not: reports belong to one job if they share a communicator. A report
shows one moment, in which a rank that has called less may only be late. So what it shows is published once nothing has
moved for some time; that a process does not answer RAS, at once.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from c4bench.c4d.evidence.judge import judge
from c4bench.evidence import ras
from c4bench.evidence.collect import one_job
from c4bench.evidence.limits import UnreadableError, gunzip
from c4bench.model.diagnosis import Cause, Diagnosis
from c4bench.model.evidence import EvidenceReport, EvidenceVerdict, MemberEvidence, Reading

_logger = logging.getLogger(__name__)

_UNMOVED_S = 15.0
_FORGOTTEN_S = 120.0
_AT_ONCE = (Cause.PROCESS_ENDED, Cause.PROCESS_STOPPED)


class _Kept(msgspec.Struct, frozen=True):
    """The newest report of a host, and when it came."""

    at_s: float
    reading: Reading


class _Seen(msgspec.Struct):
    """What a job's reports showed last, since when they have, and what was published of it."""

    counts: frozenset[tuple[str, int, int]]
    since_s: float
    published: set[tuple[Cause | None, tuple[int, ...]]]


class RasReports:
    """The newest report of each host. New diagnoses go to `publish`, reports as they came to `keep`, by host."""

    def __init__(self, publish: Callable[[float, Diagnosis], None], keep: Callable[[str, bytes], None]) -> None:
        self._publish, self._keep = publish, keep
        self._kept: dict[str, _Kept] = {}
        self._seen: dict[str, _Seen] = {}

    async def ingest(self, host: str, packed: bytes, now_s: float) -> None:
        """Take a report, compressed, of the RAS on `host`, and publish what it adds to the others of its job."""
        try:
            data = gunzip(packed)
            reading = await asyncio.to_thread(ras.read, data, host)
        except UnreadableError as error:
            _logger.warning("report of NCCL RAS on %s: %s", host, error, extra={"host": host})
            return
        self._keep(host, data)
        self._kept = {one: kept for one, kept in self._kept.items() if now_s - kept.at_s < _FORGOTTEN_S}
        self._kept[host] = _Kept(now_s, reading)
        mine = self._same_job(reading)
        report = await asyncio.to_thread(lambda: judge(one_job(mine, []), job_name(mine)))
        self._compare(job_name(mine), _counts(mine), report, now_s)

    def _same_job(self, reading: Reading) -> list[Reading]:
        """All reports that share a communicator with this one, directly or through others."""
        found, comms, left = [reading], _comms(reading), [kept.reading for kept in self._kept.values()]
        left = [one for one in left if one is not reading]
        while near := [one for one in left if comms & _comms(one)]:
            found += near
            comms |= frozenset().union(*map(_comms, near))
            left = [one for one in left if one not in near]
        return found

    def _compare(self, job: str, counts: frozenset[tuple[str, int, int]], report: EvidenceReport, now_s: float) -> None:
        seen = self._seen.get(job)
        if seen is None or seen.counts != counts:
            seen = self._seen[job] = _Seen(counts, now_s, seen.published if seen else set())
        still = now_s - seen.since_s >= _UNMOVED_S
        shown = {(one.diagnosis.cause, one.culprits) for one in report.verdicts}
        for verdict in report.verdicts:
            key = verdict.diagnosis.cause, verdict.culprits
            if key not in seen.published and (still or verdict.diagnosis.cause in _AT_ONCE):
                seen.published.add(key)
                self._publish(now_s, _stamped(verdict, seen.since_s, now_s))
        seen.published &= shown


def job_name(readings: Iterable[Reading]) -> str:
    """A name for the job: its largest communicator."""
    members = [member for reading in readings for member in reading.members]
    largest = max(members, key=lambda one: (one.size, one.comm), default=None)
    return f"nccl-{largest.comm}" if largest and largest.comm else "nccl"


def _comms(reading: Reading) -> frozenset[str]:
    return frozenset(member.comm for member in reading.members if member.comm)


def _counts(readings: Iterable[Reading]) -> frozenset[tuple[str, int, int]]:
    """How many calls each member has made, by the newest report: a job moves if this changes."""
    newest: dict[tuple[str, int], MemberEvidence] = {}
    for member in (member for reading in readings for member in reading.members if not member.status):
        place = member.comm, member.member
        if place not in newest or newest[place].last_seq < member.last_seq:
            newest[place] = member
    return frozenset((comm, member, one.last_seq) for (comm, member), one in newest.items())


def _stamped(verdict: EvidenceVerdict, since_s: float, now_s: float) -> Diagnosis:
    """The diagnosis with the master's times; RAS does not tell when it began, so it is when nothing moved any more."""
    return msgspec.structs.replace(verdict.diagnosis, onset_s=since_s, alarmed_s=now_s, named_s=now_s)
