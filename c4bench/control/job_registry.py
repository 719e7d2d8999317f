"""Which jobs run in which attempt, and which hosts are in service: the master's state, and every change of it.

A job's first attempt has the job's name for an id, the n-th restart `NAME~n`. So what comes late from an attempt that
is over, such as from a host that could not be told, is known for what it is.
"""

from collections.abc import Mapping, Sequence

import msgspec

from c4bench.control.health_page import JobHealth
from c4bench.control.store import RunningJob, Store
from c4bench.errors import UsageError
from c4bench.model.diagnosis import Component
from c4bench.model.fabric import Host
from c4bench.model.steering import Incident, IsolatedHost
from c4bench.steer.decide import HOUR_S
from c4bench.steer.reseat import reseat
from c4bench.wire.messages import Hello, JobSpec, LaunchJob

_RESTART = "~"
_OVER_KEPT = 1000


def name_of(attempt: str) -> str:
    """The job that an attempt is of."""
    return attempt.partition(_RESTART)[0]


class JobRegistry:
    """Changes are on disk before they are returned from. With `adopt`, jobs found running on hosts are entered."""

    def __init__(self, store: Store, *, adopt: bool) -> None:
        self._store, self._state = store, store.state
        self._adopt = adopt

    def running(self, name: str) -> RunningJob:
        """A job by its name. Raises UsageError when none of that name runs."""
        if name not in self._state.jobs:
            raise UsageError(f"no job {name!r} is running; there are {', '.join(sorted(self._state.jobs)) or 'none'}")
        return self._state.jobs[name]

    def present(self, attempt: str) -> RunningJob | None:
        """The job whose present attempt this is; None where it is over, or a job of our own."""
        running = self._state.jobs.get(name_of(attempt))
        return running if running is not None and running.spec.id == attempt else None

    def enter(self, launch: LaunchJob) -> None:
        """A job is to be started. Raises UsageError where that cannot be."""
        name, hosts = launch.job.id, {member.host for member in launch.job.members}
        if not name or _RESTART in name or "/" in name:
            raise UsageError(f"{name!r} is no name for a job; give one without '{_RESTART}' and '/'")
        if name in self._state.jobs:
            raise UsageError(f"a job {name!r} is running already")
        if unfit := sorted(hosts & self._state.out.keys()):
            raise UsageError(f"job {name}: {unfit[0]} is out of service; once mended: c4bench put-back {unfit[0]}")
        if twice := sorted(hosts & {spare.name for spare in launch.spares}):
            raise UsageError(f"job {name}: {twice[0]} has ranks and cannot be a spare too")
        self._over_no_more(name)
        running = RunningJob(launch.job, len(launch.job.members), launch.policy, launch.spares)
        self._state.jobs[name] = running
        self._store.save()

    def _over_no_more(self, attempt: str) -> None:
        if attempt in self._state.over:
            self._state.over.remove(attempt)

    def strike(self, name: str) -> None:
        """A job has been ended."""
        self._state.jobs.pop(name, None)
        self._store.save()

    def over(self, attempt: str) -> None:
        """An attempt's ranks are to run nowhere any more."""
        self._over_no_more(attempt)
        self._state.over.append(attempt)
        del self._state.over[:-_OVER_KEPT]
        self._store.save()

    def welcome(self, said: Hello) -> tuple[list[JobSpec], list[str]]:
        """An agent is here: jobs on its host that are new to us, and attempts there that are to end."""
        adopted, over = [], []
        for start in said.jobs:
            attempt = start.job.id
            known = self._state.jobs.get(name_of(attempt))
            if known is not None and known.spec.id == attempt:
                continue
            if known is not None or attempt in self._state.over or not self._adopt:
                over.append(attempt)
            else:
                self._state.jobs[name_of(attempt)] = RunningJob(start.job, len(start.job.members))
                adopted.append(start.job)
        self._state.roll.add(said.host)
        self._store.save()
        return adopted, over

    def leave(self, host: str) -> None:
        """A host's agent is expected no more."""
        self._state.roll.discard(host)
        self._store.save()

    def restart(
        self, name: str, moves: Mapping[str, Host | None], incidents: Sequence[Incident], now_s: float
    ) -> JobSpec:
        """The next attempt of a job, on other hosts; it is the present one from here on."""
        running = self.running(name)
        members, nics = reseat(running.spec.members, running.spec.nics, moves)
        number = int(running.spec.id.partition(_RESTART)[2] or 0) + 1
        spec = msgspec.structs.replace(running.spec, id=f"{name}{_RESTART}{number}", members=members, nics=nics)
        running.spec = spec
        running.restarts_s = [*_recent(running.restarts_s, now_s), now_s]
        running.open = list(incidents)
        self._store.save()
        return spec

    def stand(self, name: str, incidents: Sequence[Incident]) -> None:
        """How far a job's incidents are; none are left when it trains again."""
        self.running(name).open = list(incidents)
        self._store.save()

    def take_out(self, host: Host, component: Component, job: str, now_s: float) -> None:
        """A host is out of service."""
        self._state.out[host.name] = IsolatedHost(host.name, component, now_s, job)
        self._state.nics[host.name] = host
        self._state.taken_s = [*_recent(self._state.taken_s, now_s), now_s]
        self._store.save()

    def put_back(self, host: str) -> None:
        """A host is in service again, and a spare of the job it was taken from; nothing if it was not out."""
        if host not in self._state.out:
            return
        out, back = self._state.out.pop(host), self._state.nics.pop(host)
        running = self._state.jobs.get(out.job)
        if running is not None and host not in {spare.name for spare in running.spares}:
            running.spares += (back,)
        self._store.save()

    def jobs(self) -> dict[str, JobHealth]:
        """Every job, for the health page."""
        return {
            name: JobHealth(job.spec.id, len(job.spec.members), len(job.restarts_s))
            for name, job in self._state.jobs.items()
        }

    def out(self) -> tuple[IsolatedHost, ...]:
        """Every host out of service."""
        return tuple(self._state.out.values())


def host_of(name: str, running: RunningJob) -> Host:
    """A host of a job, with the NICs the job uses of it."""
    return Host(name, "", tuple(nic for nic in running.spec.nics if nic.host == name))


def _recent(times_s: Sequence[float], now_s: float) -> list[float]:
    return [time_s for time_s in times_s if now_s - time_s < HOUR_S]
