"""What to do about findings of one moment: what to isolate, which spare to take, whether to restart."""

from collections.abc import Sequence

import msgspec

from c4bench.model.diagnosis import Component, Diagnosis, Syndrome
from c4bench.model.fabric import Host
from c4bench.model.steering import Action, Incident, Policy
from c4bench.model.telemetry import Member

HOUR_S = 3600.0
_SLOW = (Syndrome.COMMUNICATION_SLOW, Syndrome.NON_COMMUNICATION_SLOW)
_FABRIC = ("path", "link", "switch")


class Fleet(msgspec.Struct, frozen=True):
    """What can be had at `now_s` (master's clock).

    `spares` answer, are not out and run nothing, the first choice first. `taken_s` is when hosts were taken out, those
    put back since included, `restarts_s` when the job was restarted, `wanted` how many ranks it was started with.
    """

    now_s: float
    members: tuple[Member, ...]
    wanted: int
    spares: tuple[Host, ...] = ()
    taken_s: tuple[float, ...] = ()
    restarts_s: tuple[float, ...] = ()


class Decision(msgspec.Struct, frozen=True):
    """An incident for each finding, before anything is done. `moves` is who takes a host's place, None for nobody."""

    incidents: tuple[Incident, ...]
    moves: dict[str, Host | None]

    @property
    def restart(self) -> bool:
        """Whether the job is to be restarted."""
        return any(incident.action is Action.RESTART for incident in self.incidents)


def decide(job: str, found: Sequence[Diagnosis], policy: Policy, fleet: Fleet) -> Decision:
    """What to do about `found`, all of the attempt of `job` that runs; the surest first, each under all limits.

    A bug of the job isolates nothing, since no other host would cure it; a link or a path isolates nothing, since
    path planning goes around it. A rank that hangs or ended takes its host with it where there is a spare, and is
    otherwise restarted in place: its end says little about the host.
    """
    case = _Case(job, policy, fleet)
    surest = sorted(found, key=lambda diagnosis: -diagnosis.confidence)
    incidents = tuple(case.judge(diagnosis) for diagnosis in surest)
    return Decision(incidents, case.moves)


class _Case:
    """Decisions of one moment, each of which leaves less for the next."""

    def __init__(self, job: str, policy: Policy, fleet: Fleet) -> None:
        self._job, self._policy, self._fleet = job, policy, fleet
        self._spares = list(fleet.spares)
        self._left = policy.hosts_per_hour - _recent(fleet.taken_s, fleet.now_s)
        self._ranks = len(fleet.members)
        self._least = policy.min_ranks or fleet.wanted
        self._restarts = policy.restarts_per_hour - _recent(fleet.restarts_s, fleet.now_s)
        self.moves: dict[str, Host | None] = {}

    def judge(self, found: Diagnosis) -> Incident:
        """What to do about one finding."""
        wish = self._policy.slow if found.syndrome in _SLOW else self._policy.hang
        if why := self._hindrance(found, wish):
            return self._observe(found, why)
        if found.component.kind in _FABRIC:
            return self._around(found, wish)
        host = self._host(found.component)
        if not host:
            return self._observe(found, f"{found.component} is on no host of the job")
        return self._take(found, host, wish)

    def _hindrance(self, found: Diagnosis, wish: Action) -> str:
        """Why nothing is done whatever the component; empty when something may be."""
        if found.component.kind == "job":
            return "a bug of the job, which no other host would cure"
        if found.confidence < self._policy.min_confidence:
            return f"sure to {found.confidence:.0%} only"
        if wish is Action.OBSERVE:
            return "the policy is to look on"
        if wish is Action.RESTART and self._restarts <= 0:
            return f"restarted {self._policy.restarts_per_hour} times within the hour already"
        return ""

    def _around(self, found: Diagnosis, wish: Action) -> Incident:
        """A part of the fabric is not a host's: path planning is told, and what hangs begins again on other paths."""
        again = wish is Action.RESTART and found.syndrome not in _SLOW
        reason = "path planning is told" + (", and the job begins again on other paths" if again else "")
        return Incident(self._job, found, Action.RESTART if again else Action.OBSERVE, reason)

    def _take(self, found: Diagnosis, host: str, wish: Action) -> Incident:
        """Take a host out of service, and its ranks elsewhere."""
        if host in self.moves:
            return Incident(self._job, found, wish, f"{host} is being replaced", found.component, host)
        if self._left <= 0:
            limit = f"{self._policy.hosts_per_hour} hosts were taken out within the hour already"
            return self._in_place(found, wish, limit)
        if wish is Action.ISOLATE:
            self._left -= 1
            return Incident(self._job, found, wish, "no new ranks are placed there", found.component, host)
        spare = self._spare(host)
        return self._replace(found, host, spare) if spare else self._drop(found, host)

    def _replace(self, found: Diagnosis, host: str, spare: Host) -> Incident:
        self._left -= 1
        self._spares.remove(spare)
        self.moves[host] = spare
        takes = f"{spare.name} takes its place"
        return Incident(self._job, found, Action.RESTART, takes, found.component, host, spare.name)

    def _drop(self, found: Diagnosis, host: str) -> Incident:
        """Go on without a host, if the job may be that small."""
        left = self._ranks - sum(member.host == host for member in self._fleet.members)
        if left >= self._least:
            self._left -= 1
            self._ranks = left
            self.moves[host] = None
            go_on = f"no spare; {left} ranks go on"
            return Incident(self._job, found, Action.RESTART, go_on, found.component, host)
        few = f"no spare, and {left} ranks are fewer than the job's minimum of {self._least}"
        return self._in_place(found, Action.RESTART, few)

    def _in_place(self, found: Diagnosis, wish: Action, why: str) -> Incident:
        """Begin again where it is, if what failed was a process that hangs or ended; a broken part would fail again."""
        if wish is Action.RESTART and found.component.kind == "rank" and found.syndrome not in _SLOW:
            return Incident(self._job, found, wish, f"{why}; restarted where it is")
        return self._observe(found, why)

    def _observe(self, found: Diagnosis, reason: str) -> Incident:
        return Incident(self._job, found, Action.OBSERVE, reason)

    def _spare(self, host: str) -> Host | None:
        """The first spare with as many NICs as the host's ranks use."""
        used = {nic for member in self._fleet.members if member.host == host for nic in member.nics}
        return next((spare for spare in self._spares if len(spare.nics) >= len(used)), None)

    def _host(self, component: Component) -> str:
        """The host of the job that a rank, a NIC or a host stands for; empty when there is none."""
        if component.kind == "rank":
            rank = int(component.name.rpartition(":")[2])
            return next((member.host for member in self._fleet.members if member.rank == rank), "")
        host = component.name.partition("/")[0]
        return host if any(member.host == host for member in self._fleet.members) else ""


def _recent(times_s: Sequence[float], now_s: float) -> int:
    return sum(now_s - time_s < HOUR_S for time_s in times_s)
