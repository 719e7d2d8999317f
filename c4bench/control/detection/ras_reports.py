"""Reports of NCCL's RAS that agents pass on: judged together by job, and published as diagnoses.

A job here is one that NCCL runs and c4bench may not: reports belong to one job if they share a communicator. A report
shows one moment, in which a rank that has called less may only be late. So what it shows is published once nothing has
moved for some time; that a process does not answer RAS, at once.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from c4bench.budget import RAS, RAS_REPORTS, Account, OverBudgetError
from c4bench.evidence import ras
from c4bench.evidence.collect import one_job
from c4bench.evidence.judging.judge import judge
from c4bench.evidence.limits import UnreadableError, gunzip
from c4bench.model.diagnosis import Cause, Component, Diagnosis
from c4bench.model.evidence import EvidenceReport, EvidenceVerdict, MemberEvidence, Reading

_logger = logging.getLogger(__name__)

_UNMOVED_S = 15.0
_FORGOTTEN_S = 120.0
_AT_ONCE = (Cause.PROCESS_ENDED, Cause.PROCESS_STOPPED)


class _Kept(msgspec.Struct, frozen=True):
    """The newest report of a host, when it came, and how many bytes it had."""

    at_s: float
    reading: Reading
    size_bytes: int


class _Seen(msgspec.Struct):
    """What a job's reports showed last (a hash), since when, when the newest came, and what was published of it."""

    counts: int
    since_s: float
    newest_s: float
    published: set[tuple[Cause | None, Component, tuple[int, ...]]]


class RasReports:
    """The newest report of each host. New diagnoses go to `publish`, reports as they came to `keep`, by host."""

    def __init__(self, publish: Callable[[float, Diagnosis], None], keep: Callable[[str, bytes], None]) -> None:
        self._publish, self._keep = publish, keep
        self._kept: dict[str, _Kept] = {}
        self._seen: dict[str, _Seen] = {}

    async def ingest(self, host: str, packed: bytes, now_s: float) -> None:
        """Take a report, compressed, of the RAS on `host`, and publish what it adds to the others of its job."""
        try:
            data, reading = await asyncio.to_thread(_read, packed, host)
        except UnreadableError as error:
            _logger.warning("report of NCCL RAS on %s: %s", host, error, extra={"host": host})
            return
        self._keep(host, data)
        self._remember(host, _Kept(now_s, reading, len(data)))
        mine = self._same_job(reading)
        job = job_name(mine)
        seen = self._follow(job, hash(_counts(mine)), now_s)
        unmoved_s = now_s - seen.since_s
        report = await asyncio.to_thread(lambda: judge(one_job(mine, []), job, unmoved_s=unmoved_s))
        self._publish_new(seen, report, now_s)

    def _remember(self, host: str, new: _Kept) -> None:
        """Keep the newest report of a host; forget old ones, and the oldest of what is more than the budget."""
        self._kept.pop(host, None)
        self._kept[host] = new
        account = Account("reports of NCCL RAS", RAS_REPORTS)
        for one, kept in sorted(self._kept.items(), key=lambda item: -item[1].at_s):
            try:
                account.spend(bytes=kept.size_bytes, records=len(kept.reading.members))
                old = new.at_s - kept.at_s >= _FORGOTTEN_S
            except OverBudgetError:
                old = True
            if old and one != host:
                del self._kept[one]

    def _same_job(self, reading: Reading) -> list[Reading]:
        """All reports that share a communicator with this one, directly or through others."""
        found, comms, left = [reading], _comms(reading), [kept.reading for kept in self._kept.values()]
        left = [one for one in left if one is not reading]
        while near := [one for one in left if comms & _comms(one)]:
            found += near
            comms |= frozenset().union(*map(_comms, near))
            left = [one for one in left if one not in near]
        return found

    def _follow(self, job: str, counts: int, now_s: float) -> _Seen:
        """What is known of a job, with these counts of calls; jobs of which nothing comes any more are forgotten."""
        seen = self._seen.pop(job, None) or _Seen(counts, now_s, now_s, set())
        if seen.counts != counts:
            seen.counts, seen.since_s = counts, now_s
        seen.newest_s = now_s
        self._seen[job] = seen  # the last, so that the first is the oldest
        for name in list(self._seen):
            if now_s - self._seen[name].newest_s < _FORGOTTEN_S and len(self._seen) <= RAS_REPORTS.names:
                break
            del self._seen[name]
        return seen

    def _publish_new(self, seen: _Seen, report: EvidenceReport, now_s: float) -> None:
        """Publish what a job's reports show, once each, if it is certain at once or nothing has moved for a while."""
        still = now_s - seen.since_s >= _UNMOVED_S
        shown = {verdict.key for verdict in report.verdicts}
        for verdict in report.verdicts:
            key = verdict.key
            if key not in seen.published and (still or verdict.diagnosis.cause in _AT_ONCE):
                seen.published.add(key)
                self._publish(now_s, _stamped(verdict, seen.since_s, now_s))
        seen.published &= shown


def _read(packed: bytes, host: str) -> tuple[bytes, Reading]:
    """A report, and what it tells. Raises UnreadableError, also for more than a report of RAS may be."""
    data = gunzip(packed, RAS.bytes)
    reading = ras.read(data, host)
    if len(reading.members) > RAS.records:
        raise UnreadableError(f"more than {RAS.records:,} ranks in its communicators")
    return data, reading


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
