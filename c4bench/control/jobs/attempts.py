"""Attempts of jobs: start their ranks, register them with the parts that need them, and end them everywhere."""

import asyncio
import logging
import time
from collections.abc import Collection
from typing import Protocol

from c4bench.control.agents.connections import AgentConnections, start_on, stop_on
from c4bench.control.jobs.job import Job
from c4bench.control.jobs.meetings import Meetings
from c4bench.control.jobs.rendezvous import RendezvousService
from c4bench.control.state.registry import JobRegistry, name_of
from c4bench.control.state.store import Store
from c4bench.errors import AbsentHostsError, UsageError
from c4bench.wire.job_names import is_check
from c4bench.wire.messages import JobSpec, StartRanks

_logger = logging.getLogger(__name__)


class _Detection(Protocol):
    """What attempts need of detection."""

    def follow(self, job: Job, now_s: float) -> None:
        """Evaluate this attempt's telemetry from now on."""

    def forget(self, attempt: str) -> None:
        """Follow an attempt that has ended no longer."""


class _Paths(Protocol):
    """What attempts need of path planning."""

    async def forget(self, job: str) -> None:
        """Remove all flows of an attempt that has ended."""


class JobAttempts:
    """Running attempts are in `jobs`, by ID."""

    def __init__(
        self,
        jobs: dict[str, Job],
        agents: AgentConnections,
        store: Store,
        registry: JobRegistry,
        rendezvous: RendezvousService,
        meetings: Meetings,
        detection: _Detection,
        paths: _Paths,
    ) -> None:
        self._jobs, self._agents, self._store, self._registry = jobs, agents, store, registry
        self._rendezvous, self._meetings, self._detection, self._paths = rendezvous, meetings, detection, paths
        # Earlier attempts by the job's name. A master that runs for long does not keep them.
        self.replaced: dict[str, list[Job]] = {}

    def busy(self) -> set[str]:
        """The hosts that attempts have ranks on."""
        return {member.host for job in self._jobs.values() for member in job.spec.members}

    def admit(self, spec: JobSpec, *, followed: bool) -> Job:
        """Register an attempt, with everything that an earlier master has saved about it."""
        if spec.id not in self._jobs:
            saved = self._store.entries(spec.id)
            self._jobs[spec.id] = Job(spec, self._store, saved)
            self._rendezvous.admit(spec.id, saved)
            if followed:
                self._detection.follow(self._jobs[spec.id], time.time())
        return self._jobs[spec.id]

    def restore(self, spec: JobSpec) -> None:
        """Register an attempt of an earlier master; it goes on without what is saved about it and cannot be read."""
        try:
            self.admit(spec, followed=True)
        except UsageError as error:
            aside = self._store.put_aside(spec.id)
            what = "it goes on, and ranks that ask again for an earlier answer may fail"
            _logger.error("%s: %s; now %s; %s", spec.id, error, aside, what, extra={"attempt": spec.id})
            self.admit(spec, followed=True)

    async def start(self, spec: JobSpec, *, followed: bool) -> Job:
        """Start the ranks of an attempt that do not run yet; C4D evaluates its telemetry if it is `followed`.

        Raises AbsentHostsError for hosts whose agents are absent or do not answer, UnhealthyError if one refuses.
        """
        job = self.admit(spec, followed=followed)
        by_host: dict[str, list[int]] = {}
        for member in spec.members:
            by_host.setdefault(member.host, []).append(member.rank)
        agents = self._agents.by_host
        requests = [start_on(agents.get(host), StartRanks(spec, tuple(ranks))) for host, ranks in by_host.items()]
        answered = await asyncio.gather(*requests)
        if absent := [host for host, there in zip(by_host, answered, strict=True) if not there]:
            raise AbsentHostsError(absent, "no agent answers; is it deployed and started? (c4bench doctor)")
        ranks = f"{len(spec.members)} ranks on {', '.join(by_host)}"
        _logger.log(_level(spec.id), "%s started: %s", spec.id, ranks, extra={"attempt": spec.id, "hosts": [*by_host]})
        return job

    async def end(self, attempt: str, unreachable: Collection[str] = ()) -> None:
        """End an attempt's ranks on all hosts that can be reached, and forget its flows and findings.

        Hosts that cannot be reached, including those in `unreachable`, are told when their agents connect again.
        """
        job = self._jobs.pop(attempt, None)
        self._registry.end_attempt(attempt)
        if job and not self._store.durable and name_of(attempt) in self._registry.jobs():
            self.replaced.setdefault(name_of(attempt), []).append(job)
        members = job.spec.members if job else ()
        hosts = {member.host: None for member in members if member.host not in unreachable}
        await asyncio.gather(*(stop_on(self._agents.by_host.get(host), attempt) for host in hosts))
        await self._paths.forget(attempt)
        self._detection.forget(attempt)
        self._rendezvous.forget(attempt)
        self._store.forget(attempt)
        if job and job.spec.meeting:
            self._meetings.forget(job.spec.meeting)
        if job:
            _logger.log(_level(attempt), "%s ended", attempt, extra={"attempt": attempt})


def _level(attempt: str) -> int:
    return logging.DEBUG if is_check(attempt) else logging.INFO
