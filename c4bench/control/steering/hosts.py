"""Which hosts are idle and in service, and when one that is out of service is put back."""

import asyncio
import logging
import time

from c4bench.control.agents.connections import AgentConnections
from c4bench.control.jobs.attempts import JobAttempts
from c4bench.control.jobs.probe_jobs import ProbeJobs
from c4bench.control.state.event_log import EventLog
from c4bench.control.state.registry import JobRegistry
from c4bench.control.state.store import RunningJob
from c4bench.errors import Periodic, UnhealthyError
from c4bench.model.event import HostReturned
from c4bench.model.fabric import Host
from c4bench.steer.decide import Fleet

_logger = logging.getLogger(__name__)

_EVERY_S = 1.0


class FleetState:
    """Which hosts are connected, in service and idle."""

    def __init__(self, registry: JobRegistry, agents: AgentConnections, attempts: JobAttempts) -> None:
        self._registry, self._agents, self._attempts = registry, agents, attempts

    def fleet(self, running: RunningJob) -> Fleet:
        """The input of a decision about a job."""
        return Fleet(
            now_s=time.time(),
            members=running.spec.members,
            wanted=running.wanted,
            spares=tuple(self.idle_spares(running)),
            taken_s=self._registry.isolated_at_s(),
            restarts_s=tuple(running.restarts_s),
        )

    def idle_spares(self, running: RunningJob) -> list[Host]:
        """The spares of a job that could run ranks now, in the order of choice."""
        isolated = {isolated.host for isolated in self._registry.isolated()}
        return [spare for spare in running.spares if spare.name not in isolated and self.idle(spare.name)]

    def idle(self, host: str) -> bool:
        """Whether a host's agent is connected, its RDMA devices work, and no attempt has ranks on it."""
        connection = self._agents.by_host.get(host)
        return connection is not None and not connection.hello.rdma and host not in self._attempts.busy()


class HostRecheck:
    """Tests hosts that are out of service with an idle spare, and puts back those that are fast enough.

    One task for the whole master.
    """

    def __init__(self, registry: JobRegistry, fleet: FleetState, probes: ProbeJobs, log: EventLog) -> None:
        self._registry, self._fleet, self._probes, self._log = registry, fleet, probes, log
        self._checked_s: dict[str, float] = {}

    async def run(self) -> None:
        """Test the hosts that are due, until cancelled."""
        periodic = Periodic("testing hosts that are out of service")
        while True:
            await asyncio.sleep(_EVERY_S)
            await periodic.round(self._test_due)

    async def _test_due(self) -> None:
        for isolated in self._registry.isolated():
            running = self._registry.jobs().get(isolated.job)
            idle = self._fleet.idle_spares(running) if running else []
            if running is None or not idle or not self._fleet.idle(isolated.host):
                continue
            last_s = self._checked_s.get(isolated.host, isolated.since_s)
            if time.time() - last_s >= running.policy.check_every_s:
                self._checked_s[isolated.host] = time.time()
                host = self._registry.isolated_host(isolated.host)
                await self._test(host, idle[0], running.policy.healthy_fraction)

    async def _test(self, host: Host, partner: Host, healthy_fraction: float) -> None:
        try:
            fraction = await self._probes.worst_fraction(host, partner)
        except UnhealthyError:
            return
        still_out = any(isolated.host == host.name for isolated in self._registry.isolated())
        if fraction >= healthy_fraction and still_out:
            self._registry.return_host(host.name)
            self._log.publish(HostReturned(time.time(), host.name, fraction))
            fields = {"host": host.name, "fraction": fraction}
            _logger.info("%s put back into service: %.2f of the payload bound", host.name, fraction, extra=fields)
