"""Jobs and their attempts: what operators ask about a job, and what starts and ends its ranks."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from c4bench.control.agents import AgentConnections, start_on, stop_on
from c4bench.control.jobs.job import Job
from c4bench.control.jobs.rendezvous import Meetings, RendezvousService
from c4bench.control.state.event_log import EventLog
from c4bench.control.state.registry import JobRegistry, name_of
from c4bench.control.state.store import Store
from c4bench.errors import AbsentHostsError, UnhealthyError, UsageError
from c4bench.model.event import HostReturned
from c4bench.wire.job_names import check_job_id, is_check
from c4bench.wire.messages import JobSpec, LaunchJob, Progress, QueryProgress, QueryResults, StartRanks

_logger = logging.getLogger(__name__)

# Stops what a part of the master does for a job, by the job's name.
Release = Callable[[str], Awaitable[None]]


class JobAttempts:
    """Starts attempts, registers them with the parts that need them, and ends them everywhere.

    Running attempts are in `jobs`, by ID. C4D evaluates telemetry of those that it is told to `follow`.
    """

    def __init__(
        self,
        jobs: dict[str, Job],
        agents: AgentConnections,
        store: Store,
        registry: JobRegistry,
        rendezvous: RendezvousService,
        meetings: Meetings,
        follow: Callable[[Job, float], None],
        forget_findings: Callable[[str], None],
        forget_flows: Callable[[str], Awaitable[None]],
    ) -> None:
        self._jobs, self._agents, self._store, self._registry = jobs, agents, store, registry
        self._rendezvous, self._meetings, self._follow = rendezvous, meetings, follow
        self._forget_findings, self._forget_flows = forget_findings, forget_flows
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
                self._follow(self._jobs[spec.id], time.time())
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
        await self._forget_flows(attempt)
        self._forget_findings(attempt)
        self._rendezvous.forget(attempt)
        self._store.forget(attempt)
        if job and job.spec.meeting:
            self._meetings.forget(job.spec.meeting)
        if job:
            _logger.log(_level(attempt), "%s ended", attempt, extra={"attempt": attempt})


class JobService:
    """What operators ask about jobs, by name: start, stop and list them, return hosts, read results.

    `jobs` has the running attempts by ID, `releases` are called when a job stops.
    """

    def __init__(
        self,
        jobs: dict[str, Job],
        registry: JobRegistry,
        attempts: JobAttempts,
        log: EventLog,
        releases: Sequence[Release],
    ) -> None:
        self._jobs, self._registry, self._attempts, self._log = jobs, registry, attempts, log
        self._releases = releases

    def restore(self) -> None:
        """Take over the jobs that an earlier master has left running; what can be no job ends.

        Those that it only followed are followed again once agents report them.
        """
        for name, running in self._registry.jobs().items():
            if running.attached:
                self._registry.remove(name)
                continue
            try:
                check_job_id(name)
            except UsageError as error:
                _logger.error("a saved job is not taken over, and ends: %s", error, extra={"job": name})
                self._registry.end_attempt(running.spec.id)
                self._registry.remove(name)
            else:
                self._attempts.restore(running.spec)

    async def start(self, launch: LaunchJob) -> Job:
        """Start a job's ranks on their hosts."""
        self._registry.check(launch)
        # Before anything is saved: this opens the job's file.
        self._attempts.admit(launch.job, followed=True)
        self._registry.add(launch)
        try:
            return await self._attempts.start(launch.job, followed=True)
        except UnhealthyError as error:
            _logger.warning("job %s cannot start: %s", launch.job.id, error, extra={"job": launch.job.id})
            await self.stop(launch.job.id)
            raise

    async def stop(self, name: str) -> None:
        """End a job, whichever attempt of it runs; do nothing if it does not run."""
        for release in self._releases:
            await release(name)
        running = self._registry.jobs().get(name)
        if running is not None:
            await self._attempts.end(running.spec.id)
            self._registry.remove(name)
        self._attempts.replaced.pop(name, None)

    async def stop_all(self) -> None:
        """End every job."""
        for name in self._registry.jobs():
            await self.stop(name)

    def check_running(self, name: str) -> None:
        """Raise UsageError if no such job runs, or c4bench has not started it."""
        if self._registry.running(name).attached:
            raise UsageError(f"job {name} was not started by c4bench; end it with what started it")

    def present(self, name: str) -> Job:
        """The present attempt of a job. Raises UsageError if no such job runs."""
        return self._jobs[self._registry.running(name).spec.id]

    def by_attempt(self, attempt: str) -> Job:
        """A running attempt by its ID."""
        return self._jobs[attempt]

    def attempts_of(self, name: str) -> list[Job]:
        """All known attempts of a running job, the present one last."""
        return [*self._attempts.replaced.get(name, ()), self.present(name)]

    async def results(self, query: QueryResults) -> list[dict[str, Any]]:
        """Results of a job's ranks, once there are as many as asked for."""
        job = self.present(query.job)
        return await job.wait(query.kind, query.count or len(job.spec.members), query.timeout_s)

    async def progress(self, query: QueryProgress) -> Progress:
        """What a job's ranks have reported and which have ended, once that has changed."""
        job = self.present(query.job)
        known = job.spec.id == query.attempt
        return await job.progress(query.first if known else 0, query.ended if known else -1, query.timeout_s)

    def return_hosts(self, name: str) -> list[str]:
        """Put a host back into service by its name, or all that a job has isolated, without a test; return which."""
        hosts = [isolated.host for isolated in self._registry.isolated() if name in (isolated.host, isolated.job)]
        for host in hosts:
            self._registry.return_host(host)
            self._log.publish(HostReturned(time.time(), host))
            _logger.info("%s put back into service by hand", host, extra={"host": host})
        return hosts

    def isolated_hosts(self) -> list[str]:
        """The hosts out of service."""
        return [isolated.host for isolated in self._registry.isolated()]


def _level(attempt: str) -> int:
    return logging.DEBUG if is_check(attempt) else logging.INFO
