"""Carries out what `steer` decides about diagnoses, and puts hosts back into service.

The time of each stage is recorded. A host that is out of service is tested with an idle one.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from c4bench.control.agents import AgentConnections
from c4bench.control.jobs.attempts import JobAttempts
from c4bench.control.jobs.job import Job
from c4bench.control.jobs.probe_jobs import ProbeJobs
from c4bench.control.paths.service import PathService
from c4bench.control.state.event_log import EventLog
from c4bench.control.state.registry import JobRegistry, host_of, name_of
from c4bench.control.state.store import RunningJob
from c4bench.errors import AbsentHostsError, Periodic, UnhealthyError
from c4bench.model.diagnosis import Cause, Diagnosis, Syndrome
from c4bench.model.event import HostReturned, SteeringStage
from c4bench.model.fabric import Host
from c4bench.model.steering import Action, Incident
from c4bench.steer import (
    Fleet,
    SteeringDecision,
    after_probes,
    after_trials,
    broken_nics,
    choose_spare,
    decide,
    needs_trials,
    ring_pairs,
)
from c4bench.workload.checkpoint import RESUMED

_logger = logging.getLogger(__name__)

_EVERY_S = 1.0
# After a restart of the master its agents need as long as this to connect again.
_AGENTS_WITHIN_S = 10.0


class FleetState:
    """Which hosts are connected, in service and idle, and how they are cabled."""

    def __init__(
        self, registry: JobRegistry, agents: AgentConnections, attempts: JobAttempts, paths: PathService
    ) -> None:
        self._registry, self._agents, self._attempts, self._paths = registry, agents, attempts, paths

    def fleet(self, running: RunningJob) -> Fleet:
        """The input of a decision about a job."""
        return Fleet(
            now_s=time.time(),
            members=running.spec.members,
            wanted=running.wanted,
            spares=tuple(self.idle_spares(running)),
            taken_s=self._registry.isolated_at_s(),
            restarts_s=tuple(running.restarts_s),
            graph=self._paths.graph,
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


class Steering:
    """At most one decision and one restart at a time for each job."""

    def __init__(
        self,
        registry: JobRegistry,
        agents: AgentConnections,
        attempts: JobAttempts,
        fleet: FleetState,
        probes: ProbeJobs,
        paths: PathService,
        log: EventLog,
    ) -> None:
        self._registry, self._agents, self._attempts, self._fleet = registry, agents, attempts, fleet
        self._probes, self._paths, self._log = probes, paths, log
        self._restarts: dict[str, asyncio.Task[None]] = {}
        self._decisions: dict[str, asyncio.Task[None]] = {}
        self._undecided: dict[str, list[Diagnosis]] = {}

    def resume(self) -> None:
        """Continue the restarts that an earlier master has left unfinished."""
        for name, running in self._registry.jobs().items():
            if running.open:
                self._restarts[name] = asyncio.create_task(self._continue_restart(name, running.open))

    def cancel(self) -> None:
        """Stop acting on all jobs; an unfinished restart is left to the next master."""
        for task in (*self._decisions.values(), *self._restarts.values()):
            task.cancel()

    def consider(self, attempt: str, diagnoses: Sequence[Diagnosis]) -> None:
        """Begin to act on an attempt's new diagnoses, together with those that arrive before the decision."""
        running = self._registry.by_attempt(attempt)
        if running is None:
            return
        name = name_of(attempt)
        if name in self._undecided:
            self._undecided[name] += diagnoses
            return
        self._undecided[name] = list(diagnoses)
        self._decisions[name] = asyncio.create_task(self._decide(name, running))

    async def _decide(self, name: str, running: RunningJob) -> None:
        """Test what is doubtful, decide, and act."""
        attempt = running.spec.id
        tested: list[Diagnosis] = []
        while self._undecided[name]:
            diagnosis = self._undecided[name].pop(0)
            refined = await self._refine(diagnosis, running)
            # Path planning has already applied the unrefined diagnosis, as far as it was sure.
            for new in refined:
                if new != diagnosis:
                    await self._paths.apply_diagnosis(new)
            tested += refined
        del self._undecided[name]
        decision = decide(name, tested, running.policy, self._fleet.fleet(running))
        for incident in decision.incidents:
            values = (attempt, incident.diagnosis.component, incident.action, incident.reason)
            _logger.info("%s: %s: %s, %s", *values, extra={"job": name, "action": incident.action})
            self._isolate(incident, running)
        self._publish([_decided(incident) for incident in decision.incidents])
        task = self._decisions.pop(name)
        if decision.restart:
            if name in self._restarts:
                self._restarts[name].cancel()  # it waits for the attempt that has failed
            self._restarts[name] = task
            await self._restart(name, attempt, decision)

    async def _refine(self, diagnosis: Diagnosis, running: RunningJob) -> Sequence[Diagnosis]:
        """The diagnosis after probes or trials of NICs, if the policy would act on it."""
        if diagnosis.syndrome is Syndrome.COMMUNICATION_SLOW:
            return (await self._probe(diagnosis, running),)
        if running.policy.hang is Action.OBSERVE or not needs_trials(diagnosis):
            return (diagnosis,)
        idle = [nic for spare in self._fleet.idle_spares(running)[:1] for nic in spare.nics]
        pairs = ring_pairs((*running.spec.nics, *idle))
        broken = broken_nics(await self._probes.failing(pairs))
        return after_trials(diagnosis, broken, [nic.name for nic in running.spec.nics if pairs])

    async def _probe(self, diagnosis: Diagnosis, running: RunningJob) -> Diagnosis:
        """Send the probes that a diagnosis asks for, while the job runs."""
        nics = {nic.name: nic for nic in running.spec.nics}
        if running.policy.slow is Action.OBSERVE or not diagnosis.probes:
            return diagnosis
        try:
            shares = await self._probes.shares([[probe] for probe in diagnosis.probes], nics)
        except UnhealthyError as error:
            values = (running.spec.id, error, diagnosis.component)
            _logger.warning("%s: probes not sent: %s; the diagnosis stays %s", *values)
            return diagnosis
        return after_probes(diagnosis, shares)

    async def release(self, name: str) -> None:
        """Stop steering a job."""
        self._undecided.pop(name, None)
        tasks = [task for kept in (self._decisions, self._restarts) if (task := kept.pop(name, None))]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _isolate(self, incident: Incident, running: RunningJob) -> None:
        out = {isolated.host for isolated in self._registry.isolated()}
        if incident.out and incident.component and incident.out not in out:
            host = host_of(incident.out, running)
            self._registry.isolate(host, incident.component, incident.job, time.time())
            fields = {"host": host.name, "component": incident.component, "job": incident.job}
            _logger.warning("%s taken out of service: %s", host.name, incident.component, extra=fields)

    async def _restart(self, name: str, attempt: str, decision: SteeringDecision) -> None:
        """End the attempt everywhere, and start the next one."""
        incidents = [incident for incident in decision.incidents if incident.action is Action.RESTART]
        self._register_next(name, decision.moves, incidents)
        silent = [incident.out for incident in incidents if incident.diagnosis.cause is Cause.HOST_SILENT]
        await self._attempts.end(attempt, silent)
        isolated_s = time.time()
        isolated = [msgspec.structs.replace(incident, isolated_s=isolated_s) for incident in incidents]
        self._record(name, isolated)
        await self._start(name, isolated)

    def _register_next(self, name: str, moves: Mapping[str, Host | None], incidents: Sequence[Incident]) -> None:
        """Register the next attempt of a job, in which `moves` replaces hosts."""
        spec = self._registry.restart(name, moves, incidents, time.time())
        moved = [f"{to.name if to else 'nothing'} in place of {host}" for host, to in moves.items()]
        values = (name, spec.id, ", ".join(moved) or "on the same hosts")
        _logger.info("job %s restarts as %s: %s", *values, extra={"job": name, "attempt": spec.id})

    async def _continue_restart(self, name: str, incidents: Sequence[Incident]) -> None:
        """Continue the restart of an earlier master; completed stages keep their times."""
        _logger.info("job %s: continuing the restart of an earlier master", name, extra={"job": name})
        hosts = {member.host for member in self._registry.running(name).spec.members}
        await self._agents.wait_for(lambda: hosts <= set(self._agents.by_host), _AGENTS_WITHIN_S)
        now_s = time.time()
        await self._start(name, [msgspec.structs.replace(i, isolated_s=i.isolated_s or now_s) for i in incidents])

    async def _start(self, name: str, incidents: Sequence[Incident]) -> None:
        """Start the present attempt; if hosts are absent, start another one without them."""
        running = self._registry.running(name)
        try:
            job = await self._attempts.start(running.spec, followed=True)
        except AbsentHostsError as error:
            await self._replace_absent(name, error, incidents)
            return
        except UnhealthyError as error:
            self._close(name, incidents, str(error))
            return
        now_s = time.time()
        restarted = [msgspec.structs.replace(i, restarted_s=i.restarted_s or now_s) for i in incidents]
        self._record(name, restarted)
        await self._wait_resumed(name, job, running, restarted)

    async def _wait_resumed(self, name: str, job: Job, running: RunningJob, incidents: Sequence[Incident]) -> None:
        try:
            results = await job.wait(RESUMED, len(job.spec.members), running.policy.resume_within_s)
        except UnhealthyError as error:
            self._close(name, incidents, str(error))
        else:
            now_s, step = time.time(), min(map(_step, results))
            duration_s = now_s - min(incident.diagnosis.alarmed_s for incident in incidents)
            values = (job.spec.id, step, duration_s)
            _logger.info("%s trains from step %d, %.1f s after the alarm", *values, extra={"job": name, "step": step})
            self._close(name, [msgspec.structs.replace(i, resumed_s=now_s, resumed_step=step) for i in incidents])

    def _close(self, name: str, incidents: Sequence[Incident], problem: str = "") -> None:
        """Close incidents, because the job trains again or because of a `problem`."""
        if problem:
            _logger.error("job %s: restart failed: %s", name, problem, extra={"job": name})
        suffix = f"; {problem}" if problem else ""
        self._publish([msgspec.structs.replace(i, reason=i.reason + suffix) for i in incidents])
        self._registry.save_incidents(name, ())
        self._restarts.pop(name, None)

    async def _replace_absent(self, name: str, error: AbsentHostsError, incidents: Sequence[Incident]) -> None:
        """Replace hosts whose agents are gone by spares and start again; fail if there are too few."""
        running = self._registry.running(name)
        attempt, absent = running.spec.id, error.hosts
        _logger.warning("%s cannot start: %s", attempt, error, extra={"job": name, "hosts": absent})
        fleet = self._fleet.fleet(running)
        moves: dict[str, Host | None] = {}
        for host in absent:
            left = [spare for spare in fleet.spares if spare.name not in absent and spare not in moves.values()]
            if (chosen := choose_spare(fleet.members, host, left, fleet.graph)) is None:
                self._close(name, incidents, str(error))
                return
            _logger.warning("%s: %s takes the place of %s%s", attempt, chosen.host.name, host, chosen.cost)
            moves[host] = chosen.host
        again = [msgspec.structs.replace(i, spare=_moved(i.spare, moves)) for i in incidents]
        self._register_next(name, moves, again)
        await self._attempts.end(attempt, absent)
        await self._start(name, again)

    def _record(self, name: str, incidents: Sequence[Incident]) -> None:
        self._registry.save_incidents(name, incidents)
        self._publish(incidents)

    def _publish(self, incidents: Sequence[Incident]) -> None:
        for incident in incidents:
            self._log.publish(SteeringStage(time.time(), incident))


def _decided(incident: Incident) -> Incident:
    """An incident after the decision; without a restart it ends here, and its host has been isolated already."""
    ends = incident.out and incident.action is not Action.RESTART
    return msgspec.structs.replace(incident, isolated_s=time.time()) if ends else incident


def _step(result: Mapping[str, Any]) -> int:
    """The step from which a rank trains again; 0 if it does not say."""
    step = result.get("step")
    return step if isinstance(step, int) else 0


def _moved(spare: str, moves: dict[str, Host | None]) -> str:
    to = moves.get(spare)
    return to.name if to else spare
