"""Tests hosts that are out of service with an idle spare, and puts back those that are fast enough."""

import asyncio
import logging
import time

from c4bench.control.fleet_state import FleetState
from c4bench.control.jobs.probe_jobs import ProbeJobs
from c4bench.control.periodic import Periodic
from c4bench.control.state.event_log import EventLog
from c4bench.control.state.registry import JobRegistry
from c4bench.errors import UnhealthyError
from c4bench.model.event import HostReturned
from c4bench.model.fabric import Host

_logger = logging.getLogger(__name__)

_EVERY_S = 1.0


class HostRecheck:
    """One task for the whole master."""

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
