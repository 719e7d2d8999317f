"""Attempts of jobs: begun on their hosts, known wherever something is told of them, ended everywhere."""

import asyncio
import logging
import time
from collections.abc import Collection

from c4bench.control.agent_connections import AgentConnections, start_on, stop_on
from c4bench.control.detection import Detection
from c4bench.control.job_registry import JobRegistry, name_of
from c4bench.control.jobs import Job
from c4bench.control.path_service import PathService
from c4bench.control.rendezvous import RendezvousService
from c4bench.control.store import Store
from c4bench.errors import AbsentHostsError
from c4bench.wire.messages import JobSpec, StartRanks, is_check

_logger = logging.getLogger(__name__)


class JobAttempts:
    """Those that run, in `jobs` by their ids; all others who know of an attempt are told of it here."""

    def __init__(
        self,
        jobs: dict[str, Job],
        lines: AgentConnections,
        store: Store,
        register: JobRegistry,
        board: RendezvousService,
        detection: Detection,
        routing: PathService,
    ) -> None:
        self._jobs, self._lines, self._store, self._register = jobs, lines, store, register
        self._board, self._detection, self._routing = board, detection, routing
        # By the job's name, what came before its present attempt; a master that lives on does not keep it.
        self.replaced: dict[str, list[Job]] = {}

    def busy(self) -> set[str]:
        """The hosts that attempts have ranks on."""
        return {member.host for job in self._jobs.values() for member in job.spec.members}

    def take_up(self, spec: JobSpec, *, followed: bool) -> Job:
        """Know an attempt, with all that an earlier master has written down of it."""
        if spec.id not in self._jobs:
            before = self._store.entries(spec.id)
            self._jobs[spec.id] = Job(spec, self._store, before)
            self._board.admit(spec.id, before)
            if followed:
                self._detection.follow(self._jobs[spec.id], time.time())
        return self._jobs[spec.id]

    async def begin(self, spec: JobSpec, *, followed: bool) -> Job:
        """Start an attempt's ranks, all but those that run already; C4D judges it when it is `followed`.

        Raises AbsentHostsError for hosts whose agents are not there or do not answer, UnhealthyError when one refuses.
        """
        job = self.take_up(spec, followed=followed)
        by_host: dict[str, list[int]] = {}
        for member in spec.members:
            by_host.setdefault(member.host, []).append(member.rank)
        lines = self._lines.agents
        asked = [start_on(lines.get(host), StartRanks(spec, tuple(ranks))) for host, ranks in by_host.items()]
        answered = await asyncio.gather(*asked)
        if absent := [host for host, there in zip(by_host, answered, strict=True) if not there]:
            raise AbsentHostsError(absent, "no agent answers; is it deployed and started? (c4bench doctor)")
        ranks = f"{len(spec.members)} ranks on {', '.join(by_host)}"
        _logger.log(_level(spec.id), "%s started: %s", spec.id, ranks, extra={"attempt": spec.id, "hosts": [*by_host]})
        return job

    async def end(self, attempt: str, gone: Collection[str] = ()) -> None:
        """End an attempt's ranks wherever their agents can be reached, and forget its flows and findings.

        A host that cannot be reached, as those in `gone` are known not to be, is told when its agent is back.
        """
        known = self._jobs.pop(attempt, None)
        self._register.over(attempt)
        if known and not self._store.durable and name_of(attempt) in self._store.state.jobs:
            self.replaced.setdefault(name_of(attempt), []).append(known)
        members = known.spec.members if known else ()
        hosts = {member.host: None for member in members if member.host not in gone}
        await asyncio.gather(*(stop_on(self._lines.agents.get(host), attempt) for host in hosts))
        await self._routing.forget(attempt)
        self._detection.forget(attempt)
        self._board.forget(attempt)
        self._store.forget(attempt)
        if known:
            _logger.log(_level(attempt), "%s ended", attempt, extra={"attempt": attempt})


def _level(attempt: str) -> int:
    return logging.DEBUG if is_check(attempt) else logging.INFO
