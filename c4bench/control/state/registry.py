"""The master's saved state: which jobs run in which attempt, and which hosts are in service.

A job's first attempt has the job's name as its ID, the n-th restart `NAME~n`. So a late message of an attempt that has
ended is recognised, such as one from a host that could not be reached.
"""

from collections.abc import Mapping, Sequence

import msgspec

from c4bench.budget import ADOPTED, Account, OverBudgetError
from c4bench.control.state.store import RunningJob, Store
from c4bench.errors import UsageError
from c4bench.model.diagnosis import Component
from c4bench.model.fabric import Host
from c4bench.model.steering import Incident, IsolatedHost
from c4bench.steer import HOUR_S, move_ranks
from c4bench.wire.job_names import check_job_id, is_check
from c4bench.wire.messages import Hello, JobSpec, LaunchJob, StartRanks

_RESTART = "~"
_ENDED_KEPT = 1000


def name_of(attempt: str) -> str:
    """The name of an attempt's job."""
    return attempt.partition(_RESTART)[0]


class JobHealth(msgspec.Struct, frozen=True):
    """One job: the attempt that runs, its ranks, and how often it has been restarted."""

    attempt: str
    ranks: int
    restarts: int


class JobRegistry:
    """Saves each change before it returns. With `adopt`, it registers unknown jobs that run on a host."""

    def __init__(self, store: Store, *, adopt: bool) -> None:
        self._store, self._state = store, store.state
        self._adopt = adopt

    def jobs(self) -> dict[str, RunningJob]:
        """Every running job by name."""
        return dict(self._state.jobs)

    def running(self, name: str) -> RunningJob:
        """A job by its name. Raises UsageError if no such job runs."""
        if name not in self._state.jobs:
            raise UsageError(f"no job {name!r} is running; there are {', '.join(sorted(self._state.jobs)) or 'none'}")
        return self._state.jobs[name]

    def by_attempt(self, attempt: str) -> RunningJob | None:
        """The job whose present attempt this is; None if the attempt has ended or belongs to a check."""
        running = self._state.jobs.get(name_of(attempt))
        return running if running is not None and running.spec.id == attempt else None

    def hosts_of(self, attempt: str) -> tuple[str, ...]:
        """The host of each rank of an attempt that has not ended, "" for one not followed; empty for any other."""
        running = self.by_attempt(attempt)
        hosts = {member.rank: member.host for member in running.spec.members} if running else {}
        return tuple(hosts.get(rank, "") for rank in range(1 + max(hosts, default=-1)))

    def check(self, launch: LaunchJob) -> None:
        """Raises UsageError if the job cannot be started."""
        name, hosts = launch.job.id, {member.host for member in launch.job.members}
        check_job_id(name)
        if _RESTART in name:
            raise UsageError(f"{name!r} is no name for a job; give one without '{_RESTART}'")
        if name in self._state.jobs:
            raise UsageError(f"a job {name!r} is running already")
        if unfit := sorted(hosts & self._state.out.keys()):
            raise UsageError(f"job {name}: {unfit[0]} is out of service; once repaired: c4bench put-back {unfit[0]}")
        if twice := sorted(hosts & {spare.name for spare in launch.spares}):
            raise UsageError(f"job {name}: {twice[0]} has ranks and cannot be a spare too")
        self._check_meeting(launch.job)

    def add(self, launch: LaunchJob) -> None:
        """Register a job that is about to start. Raises UsageError if it cannot be started."""
        self.check(launch)
        name = launch.job.id
        self._forget_ended(name)
        running = RunningJob(launch.job, len(launch.job.members), launch.policy, launch.spares)
        self._state.jobs[name] = running
        self._store.save()

    def follow(self, spec: JobSpec) -> None:
        """Register a job that nobody of us has started, or the ranks that it has now. It is only observed."""
        self._forget_ended(spec.id)
        self._state.jobs[spec.id] = RunningJob(spec, len(spec.members), attached=True)
        self._store.save()

    def _check_meeting(self, spec: JobSpec) -> None:
        meeting = spec.meeting
        if meeting is None:
            return
        if meeting.size < len(spec.members):
            raise UsageError(f"job {spec.id}: {len(spec.members)} ranks are too many for its meeting of {meeting.size}")
        for name, running in self._state.jobs.items():
            other = running.spec.meeting
            if other is not None and other.name == meeting.name and other.size != meeting.size:
                raise UsageError(
                    f"job {spec.id}: {meeting.size} meet at {meeting.name!r}, but by job {name} {other.size} do"
                )

    def _forget_ended(self, attempt: str) -> None:
        if attempt in self._state.over:
            self._state.over.remove(attempt)

    def remove(self, name: str) -> None:
        """Remove a job that has ended."""
        self._state.jobs.pop(name, None)
        self._store.save()

    def end_attempt(self, attempt: str) -> None:
        """Note that an attempt has ended: its ranks must not run anywhere."""
        self._forget_ended(attempt)
        self._state.over.append(attempt)
        del self._state.over[:-_ENDED_KEPT]
        self._store.save()

    def add_agent(self, hello: Hello) -> tuple[list[JobSpec], list[str]]:
        """Expect an agent; return the jobs on its host that are adopted, and the attempts there that must end.

        A job is adopted only if its id can be one, the agent's host has the ranks that it claims, and the agent has not
        brought back too many (`budget.ADOPTED`); others must end.
        """
        adopted: list[JobSpec] = []
        ended: list[str] = []
        room = self._room(hello.host)
        for start in hello.jobs:
            attempt = start.job.id
            known = self._state.jobs.get(name_of(attempt))
            if known is not None and known.spec.id == attempt:
                continue
            # Only an operator puts a job into a meeting.
            spec = msgspec.structs.replace(start.job, meeting=None)
            over = known is not None or attempt in self._state.over or not self._adopt
            if over or not _credible(start, hello.host) or not _fits(room, spec):
                ended.append(attempt)
            else:
                self._state.jobs[name_of(attempt)] = RunningJob(spec, len(spec.members), brought_by=hello.host)
                adopted.append(spec)
        self._state.roll.add(hello.host)
        self._store.save()
        return adopted, ended

    def _room(self, host: str) -> Account:
        """What an agent may still bring back, besides what it has brought."""
        room = Account(f"jobs brought back by {host}", ADOPTED)
        for running in self._state.jobs.values():
            if running.brought_by == host:
                _fits(room, running.spec)
        return room

    def remove_agent(self, host: str) -> None:
        """Stop expecting a host's agent."""
        self._state.roll.discard(host)
        self._store.save()

    def restart(
        self, name: str, moves: Mapping[str, Host | None], incidents: Sequence[Incident], now_s: float
    ) -> JobSpec:
        """Register the next attempt of a job, on other hosts, as its present one."""
        running = self.running(name)
        members, nics = move_ranks(running.spec.members, running.spec.nics, moves)
        number = int(running.spec.id.partition(_RESTART)[2] or 0) + 1
        spec = msgspec.structs.replace(running.spec, id=f"{name}{_RESTART}{number}", members=members, nics=nics)
        running.spec = spec
        running.restarts_s = [*_recent(running.restarts_s, now_s), now_s]
        running.open = list(incidents)
        self._store.save()
        return spec

    def save_incidents(self, name: str, incidents: Sequence[Incident]) -> None:
        """Save how far a job's open incidents have come; none are left when it trains again."""
        self.running(name).open = list(incidents)
        self._store.save()

    def isolate(self, host: Host, component: Component, job: str, now_s: float) -> None:
        """Take a host out of service."""
        self._state.out[host.name] = IsolatedHost(host.name, component, now_s, job)
        self._state.nics[host.name] = host
        self._state.taken_s = [*_recent(self._state.taken_s, now_s), now_s]
        self._store.save()

    def return_host(self, host: str) -> None:
        """Put a host back into service, as a spare of the job it was taken from; do nothing if it was not out."""
        if host not in self._state.out:
            return
        isolated, back = self._state.out.pop(host), self._state.nics.pop(host)
        running = self._state.jobs.get(isolated.job)
        if running is not None and host not in {spare.name for spare in running.spares}:
            running.spares += (back,)
        self._store.save()

    def isolated(self) -> tuple[IsolatedHost, ...]:
        """Every host out of service."""
        return tuple(self._state.out.values())

    def isolated_host(self, name: str) -> Host:
        """A host out of service, with the NICs to test it by."""
        return self._state.nics[name]

    def isolated_at_s(self) -> tuple[float, ...]:
        """When hosts were taken out of service, including those that have been put back since."""
        return tuple(self._state.taken_s)

    def health(self) -> dict[str, JobHealth]:
        """The health of every job, by name."""
        return {
            name: JobHealth(job.spec.id, len(job.spec.members), len(job.restarts_s))
            for name, job in self._state.jobs.items()
        }


def _credible(start: StartRanks, host: str) -> bool:
    """Whether an agent of that host may have been given these ranks."""
    try:
        check_job_id(start.job.id)
    except UsageError:
        return False
    _, again, number = start.job.id.partition(_RESTART)
    if is_check(start.job.id) or (again and not (number.isascii() and number.isdecimal())):
        return False
    there = {member.rank for member in start.job.members if member.host == host}
    return bool(start.ranks) and there.issuperset(start.ranks)


def _fits(room: Account, spec: JobSpec) -> bool:
    """Whether there is room for one more job, which is then taken."""
    try:
        room.spend(bytes=len(msgspec.msgpack.encode(spec)), records=1, names=len(spec.members))
    except OverBudgetError:
        return False
    return True


def host_of(name: str, running: RunningJob) -> Host:
    """A host of a job, with those of its NICs that the job uses."""
    return Host(name, "", tuple(nic for nic in running.spec.nics if nic.host == name))


def _recent(times_s: Sequence[float], now_s: float) -> list[float]:
    return [time_s for time_s in times_s if now_s - time_s < HOUR_S]
