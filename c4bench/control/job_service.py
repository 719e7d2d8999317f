"""What operators ask of the master: start, stop and list jobs, return hosts, read results."""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from c4bench.control.event_log import EventLog
from c4bench.control.job_attempts import JobAttempts
from c4bench.control.job_registry import JobRegistry
from c4bench.control.jobs import Job
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.event import HostReturned
from c4bench.wire.job_names import check_job_id
from c4bench.wire.messages import LaunchJob, Progress, QueryProgress, QueryResults

_logger = logging.getLogger(__name__)

# Stops what a part of the master does for a job, by the job's name.
Release = Callable[[str], Awaitable[None]]


class JobService:
    """Jobs by name; `jobs` has the running attempts by ID, `releases` are called when a job stops."""

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
        """Take over the jobs that an earlier master has left running; what can be no job ends."""
        for name, running in self._registry.jobs().items():
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
        """Raise UsageError if no such job runs."""
        self._registry.running(name)

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
