"""Jobs that nobody of us has started: which there are, as agents report their processes, and what their records name.

An agent speaks for processes on its own host only. A job is known by the name that its launcher gave it; it begins with
its first process and ends when no connected agent lists one of it. A name of a job that we have started is not
given to any other, and a rank has one process at a time.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from c4bench.budget import ADOPTED, ATTACHED
from c4bench.control.agents import AgentConnections
from c4bench.control.jobs.attached_names import AttachedNames, Seat
from c4bench.control.jobs.attempts import JobAttempts
from c4bench.control.jobs.job import Job
from c4bench.control.state.registry import JobRegistry
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.fabric import ASK_QPS, Flow, Nic
from c4bench.model.telemetry import Member
from c4bench.model.window import Window
from c4bench.wire.job_names import check_job_id, is_check
from c4bench.wire.messages import (
    Attached,
    AttachedMoves,
    AttachedPath,
    AttachedRank,
    AttachedWord,
    Empty,
    FollowGuidance,
    Guidance,
    JobSpec,
    Release,
    Route,
    Seated,
)

_logger = logging.getLogger(__name__)

PROGRAM = "attached"
_RESTART = "~"
# Each queue pair of a program is a connection of its own, and carries all of its load.
_WHOLE = 1.0
_PORTS = 1 << 16
_REFUSED = "its device, or its program, does not let it move"


class _Host(msgspec.Struct, frozen=True):
    """What a host's agent has reported: its NICs by address, and the seats of its processes by PID."""

    nics: dict[str, Nic]
    seats: dict[int, Seat]


class Planner(Protocol):
    """What plans paths: `PathService`."""

    def nic(self, name: str) -> Nic | None:
        """A NIC of the inventory that is planned by."""

    def nic_at(self, address: str) -> Nic | None:
        """The same by its address."""

    async def route(self, request: Route) -> tuple[int, ...]:
        """Place these flows; return their source ports."""

    async def release(self, request: Release) -> Empty:
        """Remove flows."""

    async def follow(self, request: FollowGuidance) -> Guidance:
        """Wait until flows should have other ports."""


class AttachedJobs:
    """The jobs of attached processes. The `planner`'s inventory of NICs is believed rather than an agent."""

    def __init__(
        self,
        jobs: Mapping[str, Job],
        registry: JobRegistry,
        attempts: JobAttempts,
        agents: AgentConnections,
        planner: Planner,
    ) -> None:
        self._jobs, self._registry, self._attempts = jobs, registry, attempts
        self._agents, self._planner = agents, planner
        self._hosts: dict[str, _Host] = {}
        self._names = AttachedNames()
        # The planned flows of each process, by host and PID.
        self._routed: dict[tuple[str, int], set[str]] = {}

    async def report(self, host: str, said: Attached) -> Seated:
        """Note all processes that are attached on a host; return which are followed, and why others are not."""
        before = self._hosts.pop(host, _Host({}, {}))
        nics = self._credible(host, said.nics[: ATTACHED.names])
        seats: dict[int, Seat] = {}
        refused: dict[int, str] = {}
        # Those that are known first: a new one does not take a rank from them.
        listed = sorted(said.processes[: ATTACHED.records], key=lambda one: one.pid not in before.seats)
        for process in listed:
            try:
                seats[process.pid] = self._seat(host, process, before.seats.get(process.pid), seats)
            except UsageError as error:
                refused[process.pid] = str(error)
                _logger.warning("process %d of %s is not followed: %s", process.pid, host, error, extra={"host": host})
        self._hosts[host] = _Host(nics, seats)
        await self._release_ended(host, before.seats)
        self._names.place(host, nics, seats.values())
        for job in sorted({seat.job for seat in (*before.seats.values(), *seats.values())}):
            await self._follow(job)
        return Seated({pid: seat.rank for pid, seat in seats.items()}, refused)

    def translate(self, window: Window) -> Window:
        """A host's window by the names of NICs and ranks also where attached processes have recorded addresses."""
        return self._names.translate(window)

    async def route(self, host: str, asked: AttachedPath) -> int:
        """The source port for a queue pair of a host's process, once it is known; 0 where nothing is planned.

        ASK_QPS where it depends on the queue pair at the far end, and that is not said.
        """
        flow = self._flow(host, asked)
        if flow is None or self._planner.nic(flow.source) is None:
            return 0
        qps = msgspec.UNSET if asked.remote_qp is msgspec.UNSET else (asked.remote_qp,)
        (port,) = await self._planner.route(Route(flow.job, (flow,), qps))
        if port == ASK_QPS:
            return port
        if self._flow(host, asked) is None:  # the process has ended meanwhile
            await self._planner.release(Release(flow.job, (flow.id,)))
            return 0
        self._routed.setdefault((host, asked.pid), set()).add(flow.id)
        return port

    async def moves(self, host: str, asked: AttachedMoves) -> dict[int, int]:
        """Wait until queue pairs of a host's process should have other source ports; return these by their places.

        Raises UnhealthyError where none of them is planned.
        """
        for path in asked.gone:
            if (flow := self._flow(host, path)) is not None:
                self._routed.get((host, path.pid), set()).discard(flow.id)
                await self._planner.release(Release(flow.job, (flow.id,)))
        if not asked.paths:
            return {}
        flows = {place: flow for place, path in enumerate(asked.paths) if (flow := self._flow(host, path)) is not None}
        if len({flow.job for flow in flows.values()}) != 1 or len(asked.ports) != len(asked.paths):
            raise UnhealthyError("these queue pairs are not those of one job")
        if not all(0 <= port < _PORTS for port in asked.ports):
            raise UnhealthyError("these are no source ports of queue pairs")
        for place, flow in flows.items():  # also those that a master before this one has placed
            self._routed.setdefault((host, asked.paths[place].pid), set()).add(flow.id)
        ports, weights = tuple(asked.ports[place] for place in flows), (_WHOLE,) * len(flows)
        refused = {flows[place].id: _REFUSED for place in asked.refused if place in flows}
        job = next(iter(flows.values())).job
        guidance = await self._planner.follow(FollowGuidance(job, tuple(flows.values()), ports, weights, refused))
        return {place: guidance.ports[flow.id] for place, flow in flows.items() if flow.id in guidance.ports}

    async def bring(self, host: str, said: AttachedWord) -> None:
        """Bring a word of a host's process to the host at the other end. Raises UnhealthyError where that cannot be."""
        known = self._hosts.get(host)
        there = self._planner.nic_at(said.destination) or self._names.nic(said.destination)
        if known is None or said.source not in known.nics or there is None:
            raise UnhealthyError("this is no connection of the host's processes")
        await self._agents.peer(there.host).note("attached-word", said)

    async def _release_ended(self, host: str, before: Mapping[int, Seat]) -> None:
        """Release the flows of a host's processes that have ended."""
        for pid, seat in before.items():
            now = self._hosts[host].seats.get(pid)
            if (now is None or now.ended) and (flows := self._routed.pop((host, pid), None)):
                await self._planner.release(Release(seat.job, tuple(flows)))

    def _flow(self, host: str, asked: AttachedPath) -> Flow | None:
        """The flow of a queue pair of a host's process; None where it has ended, or it or its NICs are not known."""
        known = self._hosts.get(host)
        seat = known.seats.get(asked.pid) if known else None
        source = known.nics.get(asked.source) if known else None
        destination = self._planner.nic_at(asked.destination)
        if seat is None or seat.ended or source is None or destination is None:
            return None
        name = f"{seat.job}/verbs/{seat.rank}/{source.name}>{destination.name}/{asked.qp}.0"
        return Flow(name, seat.job, source.name, destination.name, source.rate_bps)

    def _credible(self, host: str, nics: Iterable[Nic]) -> dict[str, Nic]:
        """The NICs of a host by address, as the inventory has them, without addresses of other hosts."""
        own = (self._planner.nic(nic.name) or nic for nic in nics if nic.host == host)
        others = {address for other in self._hosts.values() for address in other.nics}
        return {nic.address: nic for nic in own if nic.address not in others}

    def _seat(self, host: str, process: AttachedRank, known: Seat | None, own: Mapping[int, Seat]) -> Seat:
        """The seat of a process. Raises UsageError where there is none for it."""
        if known is not None and known.job == process.job and process.rank in {None, known.rank}:
            return msgspec.structs.replace(known, ended=process.ended)
        self._check_name(process.job)
        if len({seat.job for seat in own.values()} | {process.job}) > ADOPTED.records:
            raise UsageError(f"processes of more than {ADOPTED.records} jobs on a host")
        taken = self._taken(process.job) | {seat.rank: host for seat in own.values() if _lives_in(process.job, seat)}
        rank = next(number for number in range(len(taken) + 1) if number not in taken)
        if process.rank is not None:
            rank = process.rank
        if rank in taken:
            raise UsageError(f"{process.job} has a rank {rank} on {taken[rank]} already")
        if not 0 <= rank < ADOPTED.names:
            raise UsageError(f"{process.job}: rank {rank} is not below {ADOPTED.names}")
        return Seat(process.job, rank, process.ended)

    def _check_name(self, job: str) -> None:
        check_job_id(job)
        running = self._registry.jobs().get(job)
        if _RESTART in job or is_check(job) or (running is not None and not running.attached):
            raise UsageError(f"a job {job!r} runs that c4bench has started; set another C4BENCH_JOB")

    def _taken(self, job: str) -> dict[int, str]:
        """The hosts of a job's ranks that live, as far as their agents are connected."""
        return {
            seat.rank: host
            for host, known in self._hosts.items()
            if host in self._agents.by_host
            for seat in known.seats.values()
            if _lives_in(job, seat)
        }

    async def _follow(self, job: str) -> None:
        """Have a job judged with the ranks that it has now, or end it."""
        connected = [known for host, known in self._hosts.items() if host in self._agents.by_host]
        if not any(seat.job == job for known in connected for seat in known.seats.values()):
            if job in self._registry.jobs():
                _logger.info("%s ended: its processes have gone", job, extra={"job": job})
                await self._attempts.end(job)
                self._registry.remove(job)
                self._names.forget(job)
            return
        spec = self._spec(job)
        present = self._jobs.get(job)
        if present is None or present.spec != spec:
            self._attempts.admit(spec, followed=True).become(spec)
            self._registry.follow(spec)
            ranks = f"{len(spec.members)} ranks on {', '.join(sorted({member.host for member in spec.members}))}"
            _logger.info("%s is followed: %s", job, ranks, extra={"job": job})

    def _spec(self, job: str) -> JobSpec:
        """A job as its processes show it; a rank's ended process counts until another one has its rank."""
        hosts: dict[int, str] = {}
        for ended in (True, False):
            for host, known in self._hosts.items():
                hosts |= {seat.rank: host for seat in known.seats.values() if seat.job == job and seat.ended == ended}
        nics = {host: tuple(self._hosts[host].nics.values()) for host in sorted(set(hosts.values()))}
        members = [
            Member(rank, host, tuple(nic.name for nic in nics[host]), rank) for rank, host in sorted(hosts.items())
        ]
        return JobSpec(job, PROGRAM, tuple(members), tuple(nic for own in nics.values() for nic in own))


def _lives_in(job: str, seat: Seat) -> bool:
    return seat.job == job and not seat.ended
