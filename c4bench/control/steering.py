"""The hands of steering: what `steer.decide` has decided is done here, and every stage stamped."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from c4bench.control import probe_jobs
from c4bench.control.job_registry import host_of, name_of
from c4bench.control.jobs import Job
from c4bench.control.store import RunningJob
from c4bench.errors import AbsentHostsError, UnhealthyError
from c4bench.model.diagnosis import Cause, Diagnosis, Syndrome
from c4bench.model.event import HostReturned, SteeringStage
from c4bench.model.fabric import Host
from c4bench.model.steering import Action, Incident
from c4bench.steer.decide import Decision, Fleet, decide
from c4bench.steer.suspects import broken, doubtful, narrowed, pairs, settled
from c4bench.workload.learning import RESUMED

if TYPE_CHECKING:
    from c4bench.control.master import Master

_logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
# After the master has come back its agents need as long as that to be there too.
_AGENTS_WITHIN_S = 10.0


class Steering:
    """One task for each job that is being steered, and one that looks at hosts out of service."""

    def __init__(self, master: "Master") -> None:
        self._master = master
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._thinking: dict[str, asyncio.Task[None]] = {}
        self._deciding: dict[str, list[Diagnosis]] = {}
        self._checked_s: dict[str, float] = {}

    async def run(self) -> None:
        """Go on with what an earlier master left unfinished; then look after hosts out of service, for ever."""
        for name, running in self._master.store.state.jobs.items():
            if running.open:
                self._tasks[name] = asyncio.create_task(self._go_on(name, running.open))
        try:
            while True:
                await asyncio.sleep(_LOOK_EVERY_S)
                await self._look_after()
        finally:
            for task in (*self._thinking.values(), *self._tasks.values()):
                task.cancel()

    def consider(self, attempt: str, found: Sequence[Diagnosis]) -> None:
        """Begin to act on an attempt's findings of one moment, and on those that come before it is decided."""
        running = self._master.register.present(attempt)
        if running is None:
            return
        name = name_of(attempt)
        if name in self._deciding:
            self._deciding[name] += found
            return
        self._deciding[name] = list(found)
        self._thinking[name] = asyncio.create_task(self._handle(name, running))

    async def _handle(self, name: str, running: RunningJob) -> None:
        """Look into what is doubtful, decide, and act."""
        attempt = running.spec.id
        sure: list[Diagnosis] = []
        while self._deciding[name]:
            found = self._deciding[name].pop(0)
            settled = await self._settled(found, running)
            # Path planning has heard the first of it, and left alone what was not sure.
            for one in settled:
                if one != found:
                    await self._master.routing.apply_diagnosis(one)
            sure += settled
        del self._deciding[name]
        decision = decide(name, sure, running.policy, self._fleet(running))
        for incident in decision.incidents:
            said = (attempt, incident.diagnosis.component, incident.action, incident.reason)
            _logger.info("%s: %s: %s, %s", *said, extra={"job": name, "action": incident.action})
            self._take_out(incident, running)
        self._tell([self._looked_on(incident) for incident in decision.incidents])
        thinking = self._thinking.pop(name)
        if decision.restart:
            if name in self._tasks:
                self._tasks[name].cancel()  # it waits for this very attempt to train, which has failed
            self._tasks[name] = thinking
            await self._restart(name, attempt, decision)

    async def _settled(self, found: Diagnosis, running: RunningJob) -> Sequence[Diagnosis]:
        """What probes or trials make of a diagnosis that somebody would act on."""
        if found.syndrome is Syndrome.COMMUNICATION_SLOW:
            return (await self._narrowed(found, running),)
        if running.policy.hang is Action.OBSERVE or not doubtful(found):
            return (found,)
        idle = [nic for spare in self._fleet(running).spares[:1] for nic in spare.nics]
        tried = pairs((*running.spec.nics, *idle))
        failed = broken(await probe_jobs.failing(self._master, tried))
        return settled(found, failed, [nic.name for nic in running.spec.nics if tried])

    async def _narrowed(self, found: Diagnosis, running: RunningJob) -> Diagnosis:
        """Send the probes that a diagnosis asks for, beside the job."""
        nics = {nic.name: nic for nic in running.spec.nics}
        if running.policy.slow is Action.OBSERVE or not found.probes:
            return found
        try:
            return narrowed(found, await probe_jobs.shares(self._master, [[probe] for probe in found.probes], nics))
        except UnhealthyError as error:
            said = (running.spec.id, error, found.component)
            _logger.warning("%s: probes not sent: %s; the diagnosis stays %s", *said)
            return found

    async def let_go(self, name: str) -> None:
        """Steer a job no more."""
        self._deciding.pop(name, None)
        tasks = [task for kept in (self._thinking, self._tasks) if (task := kept.pop(name, None))]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _take_out(self, incident: Incident, running: RunningJob) -> None:
        out = {known.host for known in self._master.register.out()}
        if incident.out and incident.component and incident.out not in out:
            host = host_of(incident.out, running)
            self._master.register.take_out(host, incident.component, incident.job, time.time())
            fields = {"host": host.name, "component": incident.component, "job": incident.job}
            _logger.warning("%s taken out of service: %s", host.name, incident.component, extra=fields)

    def _looked_on(self, incident: Incident) -> Incident:
        """An incident that ends here: the host, if any, has been taken out already."""
        ends = incident.out and incident.action is not Action.RESTART
        return msgspec.structs.replace(incident, isolated_s=time.time()) if ends else incident

    async def _restart(self, name: str, attempt: str, decision: Decision) -> None:
        """End the attempt everywhere, and start the next one elsewhere."""
        acted_on = [incident for incident in decision.incidents if incident.action is Action.RESTART]
        self._next(name, decision.moves, acted_on)
        gone = [incident.out for incident in acted_on if incident.diagnosis.cause is Cause.HOST_SILENT]
        await self._master.attempts.end(attempt, gone)
        isolated_s = time.time()
        incidents = [msgspec.structs.replace(incident, isolated_s=isolated_s) for incident in acted_on]
        self._stand(name, incidents)
        await self._start(name, incidents)

    def _next(self, name: str, moves: Mapping[str, Host | None], incidents: Sequence[Incident]) -> None:
        """Register the next attempt of a job, in which `moves` replaces hosts."""
        spec = self._master.register.restart(name, moves, incidents, time.time())
        moved = [f"{to.name if to else 'nothing'} in place of {host}" for host, to in moves.items()]
        said = (name, spec.id, ", ".join(moved) or "on the same hosts")
        _logger.info("job %s restarts as %s: %s", *said, extra={"job": name, "attempt": spec.id})

    async def _go_on(self, name: str, incidents: Sequence[Incident]) -> None:
        """Take up a restart in whose midst an earlier master ended; what it had done already is not done twice."""
        _logger.info("job %s: continuing the restart of an earlier master", name, extra={"job": name})
        hosts = {member.host for member in self._master.register.running(name).spec.members}
        await self._master.lines.wait_for(lambda: hosts <= set(self._master.lines.agents), _AGENTS_WITHIN_S)
        now_s = time.time()
        reached = [msgspec.structs.replace(one, isolated_s=one.isolated_s or now_s) for one in incidents]
        await self._start(name, reached)

    async def _start(self, name: str, incidents: Sequence[Incident]) -> None:
        """Start the present attempt; where a host fails at that, the next one, without it."""
        running = self._master.register.running(name)
        try:
            job = await self._master.attempts.begin(running.spec, followed=True)
        except AbsentHostsError as error:
            await self._without(name, error, incidents)
            return
        except UnhealthyError as error:
            self._end(name, incidents, str(error))
            return
        restarted_s = time.time()
        reached = [msgspec.structs.replace(one, restarted_s=one.restarted_s or restarted_s) for one in incidents]
        self._stand(name, reached)
        await self._resumed(name, job, running, reached)

    async def _resumed(self, name: str, job: Job, running: RunningJob, incidents: Sequence[Incident]) -> None:
        try:
            said = await job.wait(RESUMED, len(job.spec.members), running.policy.resume_within_s)
        except UnhealthyError as error:
            self._end(name, incidents, str(error))
        else:
            now_s, step = time.time(), min(int(one["step"]) for one in said)
            took_s = now_s - min(one.diagnosis.alarmed_s for one in incidents)
            told = (job.spec.id, step, took_s)
            _logger.info("%s trains from step %d, %.1f s after the alarm", *told, extra={"job": name, "step": step})
            self._end(name, [msgspec.structs.replace(one, resumed_s=now_s, resumed_step=step) for one in incidents])

    def _end(self, name: str, incidents: Sequence[Incident], problem: str = "") -> None:
        """Nothing more is done about these, as the job trains again or because of a `problem`."""
        if problem:
            _logger.error("job %s: restart failed: %s", name, problem, extra={"job": name})
        why = f"; {problem}" if problem else ""
        self._tell([msgspec.structs.replace(one, reason=one.reason + why) for one in incidents])
        self._master.register.stand(name, ())
        self._tasks.pop(name, None)

    async def _without(self, name: str, error: AbsentHostsError, incidents: Sequence[Incident]) -> None:
        """Members' agents have gone since they were chosen: take other hosts, or give up and say so."""
        running = self._master.register.running(name)
        attempt, absent = running.spec.id, error.hosts
        _logger.warning("%s cannot start: %s", attempt, error, extra={"job": name, "hosts": absent})
        spares = [spare for spare in self._fleet(running).spares if spare.name not in absent]
        if len(absent) > len(spares):
            self._end(name, incidents, str(error))
            return
        moves: dict[str, Host | None] = dict(zip(absent, spares, strict=False))
        again = [msgspec.structs.replace(one, spare=_moved(one.spare, moves)) for one in incidents]
        self._next(name, moves, again)
        await self._master.attempts.end(attempt, absent)
        await self._start(name, again)

    def _stand(self, name: str, incidents: Sequence[Incident]) -> None:
        self._master.register.stand(name, incidents)
        self._tell(incidents)

    def _tell(self, incidents: Sequence[Incident]) -> None:
        for incident in incidents:
            self._master.log.tell(SteeringStage(time.time(), incident))

    def _fleet(self, running: RunningJob) -> Fleet:
        state = self._master.store.state
        return Fleet(
            now_s=time.time(),
            members=running.spec.members,
            wanted=running.wanted,
            spares=tuple(spare for spare in running.spares if self._fit(spare.name)),
            taken_s=tuple(state.taken_s),
            restarts_s=tuple(running.restarts_s),
        )

    def _fit(self, host: str) -> bool:
        """Whether a host could take ranks now."""
        known = self._master.lines.agents.get(host)
        in_service = host not in self._master.store.state.out and host not in self._master.attempts.busy()
        return known is not None and not known.hello.rdma and in_service

    async def _look_after(self) -> None:
        """Try hosts that are out of service against one that is idle, and put back those that do well."""
        state = self._master.store.state
        for out in self._master.register.out():
            running = state.jobs.get(out.job)
            idle = [spare for spare in running.spares if self._fit(spare.name)] if running else []
            known = self._master.lines.agents.get(out.host)
            if (
                running is None
                or known is None
                or known.hello.rdma
                or not idle
                or out.host in self._master.attempts.busy()
            ):
                continue
            last_s = self._checked_s.get(out.host, out.since_s)
            if time.time() - last_s >= running.policy.check_every_s:
                self._checked_s[out.host] = time.time()
                await self._check(state.nics[out.host], idle[0], running.policy.healthy_fraction)

    async def _check(self, host: Host, partner: Host, healthy_fraction: float) -> None:
        try:
            fraction = await probe_jobs.worst_fraction(self._master, host, partner)
        except UnhealthyError:
            return
        still_out = any(out.host == host.name for out in self._master.register.out())
        if fraction >= healthy_fraction and still_out:
            self._master.register.put_back(host.name)
            self._master.log.tell(HostReturned(time.time(), host.name, fraction))
            fields = {"host": host.name, "fraction": fraction}
            _logger.info("%s put back into service: %.2f of the payload bound", host.name, fraction, extra=fields)


def _moved(spare: str, moves: dict[str, Host | None]) -> str:
    to = moves.get(spare)
    return to.name if to else spare
