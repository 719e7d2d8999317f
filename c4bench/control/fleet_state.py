"""The state of all hosts that a steering decision needs."""

import time

from c4bench.control.agents.connections import AgentConnections
from c4bench.control.jobs.attempts import JobAttempts
from c4bench.control.state.registry import JobRegistry
from c4bench.control.state.store import RunningJob
from c4bench.model.fabric import Host
from c4bench.steer.decide import Fleet


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
