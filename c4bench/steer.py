"""Decide what to do about new diagnoses: what to isolate, which spare replaces it, whether to restart.

Some need more evidence before that. When a connection dies, the ranks at both ends exit within milliseconds and all
others follow, so the first to exit says little about the cause. Therefore neighbours in a ring of all the job's NICs,
with an idle host's if there is one, transfer data: a NIC that fails with both neighbours is broken. If something is
only slow, C4D's probes decide.

The spare is the one from which the fabric looks most like from the host that it replaces (`choose_spare`).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

import msgspec

from c4bench.c4d.act.flows import probe_outcomes, remaining_suspects
from c4bench.model import advice
from c4bench.model.advice import LEAST_CONFIDENCE
from c4bench.model.diagnosis import Cause, Component, Diagnosis, Syndrome
from c4bench.model.fabric import Host, Nic
from c4bench.model.graph import FabricGraph, distances, neighbours
from c4bench.model.steering import Action, Incident, Policy
from c4bench.model.telemetry import Member

HOUR_S = 3600.0
_SLOW = (Syndrome.COMMUNICATION_SLOW, Syndrome.NON_COMMUNICATION_SLOW)
_FABRIC = ("path", "link", "switch")
_TRIED = 0.95
# The least slowdown of transfers, if a diagnosis does not state one.
_TIMES = 1.1
# Causes that were observed on the component itself.
_OBSERVED = (Cause.HOST_SILENT, Cause.PROCESS_STOPPED)
_HANGS = (Syndrome.COMMUNICATION_HANG, Syndrome.NON_COMMUNICATION_HANG)


class Fleet(msgspec.Struct, frozen=True):
    """The state of hosts and limits at `now_s` (master's clock).

    `spares` are connected, in service and idle, in the order of choice where the stated `graph` of the fabric does not
    tell them apart. `taken_s` is when hosts were taken out of service, including those put back since; `restarts_s`
    when the job was restarted; `wanted` how many ranks it was started with.
    """

    now_s: float
    members: tuple[Member, ...]
    wanted: int
    spares: tuple[Host, ...] = ()
    taken_s: tuple[float, ...] = ()
    restarts_s: tuple[float, ...] = ()
    graph: FabricGraph | None = None


class SteeringDecision(msgspec.Struct, frozen=True):
    """An incident for each diagnosis. `moves` maps each removed host to its replacement, None if there is none."""

    incidents: tuple[Incident, ...]
    moves: dict[str, Host | None]

    @property
    def restart(self) -> bool:
        """Whether the job must be restarted."""
        return any(incident.action is Action.RESTART for incident in self.incidents)


def decide(job: str, diagnoses: Sequence[Diagnosis], policy: Policy, fleet: Fleet) -> SteeringDecision:
    """Decide about diagnoses of the present attempt of `job`, the most confident first, each within all limits.

    A bug of the job isolates nothing, because no other host would fix it. A link or a path isolates nothing, because
    path planning avoids it, whichever of several it is; so it need not be as likely as the policy wants it. A host is
    taken out only as `model/advice.py` allows. If a rank hangs or has ended, its host is replaced if there is a spare;
    otherwise the job restarts on the same hosts, because the end of a rank says little about its host.
    """
    decisions = _Decisions(job, policy, fleet)
    ordered = sorted(diagnoses, key=lambda diagnosis: -diagnosis.confidence)
    incidents = tuple(decisions.decide(diagnosis) for diagnosis in ordered)
    return SteeringDecision(incidents, decisions.moves)


class _Decisions:
    """Decides one diagnosis after another; each decision leaves fewer spares and less of the limits for the next."""

    def __init__(self, job: str, policy: Policy, fleet: Fleet) -> None:
        self._job, self._policy, self._fleet = job, policy, fleet
        self._spares = list(fleet.spares)
        self._left = policy.hosts_per_hour - _recent(fleet.taken_s, fleet.now_s)
        self._ranks = len(fleet.members)
        self._least = policy.min_ranks or fleet.wanted
        self._restarts = policy.restarts_per_hour - _recent(fleet.restarts_s, fleet.now_s)
        self.moves: dict[str, Host | None] = {}

    def decide(self, diagnosis: Diagnosis) -> Incident:
        """Decide about one diagnosis."""
        wish = self._policy.slow if diagnosis.syndrome in _SLOW else self._policy.hang
        if why := self._hindrance(diagnosis, wish):
            return self._observe(diagnosis, why)
        if diagnosis.component.kind in _FABRIC:
            return self._reroute(diagnosis, wish)
        host = self._host(diagnosis.component)
        if not host:
            return self._observe(diagnosis, f"{diagnosis.component} is on no host of the job")
        return self._isolate(diagnosis, host, wish)

    def _hindrance(self, diagnosis: Diagnosis, wish: Action) -> str:
        """Why nothing is done, whatever the component; empty if something may be done."""
        if diagnosis.component.kind == "job":
            return "a bug of the job, which no other host would fix"
        if diagnosis.component.kind not in _FABRIC and diagnosis.confidence < self._policy.min_confidence:
            least = self._policy.min_confidence
            return f"confidence {diagnosis.confidence:.0%} is below the policy's minimum of {least:.0%}"
        if wish is Action.OBSERVE:
            return "the policy is to observe"
        if wish is Action.RESTART and self._restarts <= 0:
            return f"restarted {self._policy.restarts_per_hour} times within the last hour"
        return ""

    def _reroute(self, diagnosis: Diagnosis, wish: Action) -> Incident:
        """Leave a part of the fabric to path planning; a job that hangs restarts on other paths."""
        again = wish is Action.RESTART and diagnosis.syndrome not in _SLOW
        reason = "path planning avoids it" + (", and the job restarts on other paths" if again else "")
        return Incident(self._job, diagnosis, Action.RESTART if again else Action.OBSERVE, reason)

    def _isolate(self, diagnosis: Diagnosis, host: str, wish: Action) -> Incident:
        """Take a host out of service, and move its ranks if the policy is to restart."""
        if host in self.moves:
            return Incident(self._job, diagnosis, wish, f"{host} is being replaced", diagnosis.component, host)
        if why := advice.why_not(diagnosis):
            return self._in_place(diagnosis, wish, f"no host is taken out: {why}")
        if self._left <= 0:
            limit = f"{self._policy.hosts_per_hour} hosts were taken out of service within the last hour"
            return self._in_place(diagnosis, wish, limit)
        if wish is Action.ISOLATE:
            self._left -= 1
            return Incident(self._job, diagnosis, wish, "no new ranks are placed there", diagnosis.component, host)
        spare = choose_spare(self._fleet.members, host, self._spares, self._fleet.graph)
        return self._replace(diagnosis, host, spare) if spare else self._drop(diagnosis, host)

    def _replace(self, diagnosis: Diagnosis, host: str, chosen: "ChosenSpare") -> Incident:
        self._left -= 1
        spare = chosen.host
        self._spares.remove(spare)
        self.moves[host] = spare
        reason = f"{spare.name} takes its place{chosen.cost}"
        return Incident(self._job, diagnosis, Action.RESTART, reason, diagnosis.component, host, spare.name)

    def _drop(self, diagnosis: Diagnosis, host: str) -> Incident:
        """Continue without a host, if enough ranks remain."""
        left = self._ranks - sum(member.host == host for member in self._fleet.members)
        if left >= self._least:
            self._left -= 1
            self._ranks = left
            self.moves[host] = None
            reason = f"no spare; {left} ranks continue"
            return Incident(self._job, diagnosis, Action.RESTART, reason, diagnosis.component, host)
        few = f"no spare, and {left} ranks are fewer than the job's minimum of {self._least}"
        return self._in_place(diagnosis, Action.RESTART, few)

    def _in_place(self, diagnosis: Diagnosis, wish: Action, why: str) -> Incident:
        """Restart on the same hosts if a process hangs or has ended; a broken component would fail again."""
        if wish is Action.RESTART and diagnosis.component.kind == "rank" and diagnosis.syndrome not in _SLOW:
            return Incident(self._job, diagnosis, wish, f"{why}; restarted on the same hosts")
        return self._observe(diagnosis, why)

    def _observe(self, diagnosis: Diagnosis, reason: str) -> Incident:
        return Incident(self._job, diagnosis, Action.OBSERVE, reason)

    def _host(self, component: Component) -> str:
        """The host of a rank, a NIC or a host component of the job; empty if it has none."""
        if component.kind == "rank":
            rank = int(component.name.rpartition(":")[2])
            return next((member.host for member in self._fleet.members if member.rank == rank), "")
        host = component.name.partition("/")[0]
        return host if any(member.host == host for member in self._fleet.members) else ""


def _recent(times_s: Sequence[float], now_s: float) -> int:
    return sum(now_s - time_s < HOUR_S for time_s in times_s)


class ChosenSpare(NamedTuple):
    """The host that takes another's place, and what that costs the job: "" for nothing, as far as is known."""

    host: Host
    cost: str


def choose_spare(
    members: Sequence[Member], host: str, spares: Iterable[Host], graph: FabricGraph | None
) -> ChosenSpare | None:
    """The spare in whose place a host's ranks would perform most alike; None if none has as many NICs as they use.

    A rank that used the host's n-th NIC will use the spare's n-th. The spare is best whose NICs are as fast, and as
    near, by links, to those of the same number on the job's other hosts: at the same leaf or rail, or at one as near.
    Among equal ones the first is chosen, and where the `graph` does not state a spare, it comes last.
    """
    used = list(dict.fromkeys(nic for member in members if member.host == host for nic in member.nics))
    fitting = [spare for spare in spares if len(spare.nics) >= len(used)]
    if not fitting or graph is None:
        return ChosenSpare(fitting[0], "") if fitting else None
    near = _Nearness(members, host, used, graph)
    spare = min(fitting, key=near.cost)
    return ChosenSpare(spare, near.in_words(spare))


class _Nearness:
    """How much slower and farther from a job's other hosts spares are than the host whose NICs `used` the job has."""

    def __init__(self, members: Sequence[Member], host: str, used: Sequence[str], graph: FabricGraph) -> None:
        self._used, self._joined = used, neighbours(graph)
        self._away: dict[tuple[str, ...], dict[str, int]] = {}
        self._leaves: dict[str, set[str]] = {}
        self._rates_bps: dict[str, float] = {}
        for port in graph.host_ports:
            name = f"{port.host}/{port.nic}"
            self._leaves.setdefault(name, set()).add(port.switch)
            self._rates_bps[name] = self._rates_bps.get(name, 0.0) + port.rate_bps
        # By number of the NIC, the leaves of the job's other NICs of that number.
        others = {nic: number for member in members if member.host != host for number, nic in enumerate(member.nics)}
        self._others = [
            [self._leaves.get(nic, set()) for nic, number in others.items() if number == wanted]
            for wanted in range(len(used))
        ]

    def cost(self, spare: Host) -> tuple[float, float]:
        """By how much of a NIC's rate its slowest is slower than the host's, and how many links farther all are."""
        new = [nic.name for nic in spare.nics[: len(self._used)]]
        pairs = list(zip(new, self._used, strict=True))
        known = [(self._rates_bps.get(a, 0.0), self._rates_bps[b]) for a, b in pairs if self._rates_bps.get(b)]
        slower = max((1 - spare_bps / used_bps for spare_bps, used_bps in known), default=0.0)
        return max(0.0, slower), max(0.0, self._links(new) - self._links(self._used))

    def in_words(self, spare: Host) -> str:
        """What follows the name of the spare in the reason of a restart."""
        slower, farther = self.cost(spare)
        if farther == inf:
            return ", whose place in the fabric is not stated"
        paths = sum(map(len, self._others))
        costs = [f"its slowest NIC is {slower:.0%} slower"] if slower else []
        costs += [f"its {paths} paths to the others are {farther / paths:.2g} links longer"] if farther else []
        return f"; no spare is better: {', and '.join(costs)}" if costs else ""

    def _links(self, nics: Sequence[str]) -> float:
        """The links between these NICs and those of the same number on other hosts, in all; infinite if not known."""
        total = 0.0
        for nic, others in zip(nics, self._others, strict=True):
            away = self._distances(tuple(sorted(self._leaves.get(nic, ()))))
            total += sum(min((away.get(leaf, inf) for leaf in leaves), default=inf) for leaves in others)
        return total

    def _distances(self, leaves: tuple[str, ...]) -> dict[str, int]:
        """The distance of each switch from the nearest of these."""
        if leaves not in self._away:
            self._away[leaves] = distances(leaves, self._joined)
        return self._away[leaves]


def move_ranks(
    members: Sequence[Member], nics: Sequence[Nic], moves: Mapping[str, Host | None]
) -> tuple[tuple[Member, ...], tuple[Nic, ...]]:
    """Members and NICs of a job after `moves` from host to host; without a replacement a host's ranks are removed.

    Ranks keep their order, so sums over the ring are added in the same order as before. A rank that used a host's n-th
    NIC uses the new host's n-th. If ranks are removed, the others are numbered from 0 again.
    """
    own = {host: [nic.name for nic in nics if nic.host == host] for host in moves}
    renamed: dict[str, str] = {}
    kept = [nic for nic in nics if nic.host not in moves]
    for host, spare in moves.items():
        if spare is not None:
            new = spare.nics[: len(own[host])]
            renamed |= {old: nic.name for old, nic in zip(own[host], new, strict=True)}
            kept += new
    remaining = [_moved(member, moves, renamed) for member in members if moves.get(member.host, member) is not None]
    return tuple(msgspec.structs.replace(member, rank=rank) for rank, member in enumerate(remaining)), tuple(kept)


def _moved(member: Member, moves: Mapping[str, Host | None], renamed: Mapping[str, str]) -> Member:
    spare = moves.get(member.host)
    if spare is None:
        return member
    return msgspec.structs.replace(member, host=spare.name, nics=tuple(renamed[nic] for nic in member.nics))


def needs_trials(diagnosis: Diagnosis) -> bool:
    """Whether another component may be to blame, and trial transfers could show which."""
    untried = diagnosis.component.kind in ("job", "gpu") or diagnosis.cause in _OBSERVED
    if diagnosis.syndrome not in _HANGS or untried:
        return False
    return bool(diagnosis.alternatives) or diagnosis.confidence < LEAST_CONFIDENCE


def ring_pairs(nics: Iterable[Nic]) -> list[tuple[Nic, Nic]]:
    """Neighbours in rings of NICs, one ring for each rail, because rails need not be connected to each other."""
    rings: dict[int, list[Nic]] = {}
    for nic in nics:
        rings.setdefault(nic.index, []).append(nic)
    return [pair for ring in rings.values() if len(ring) > 2 for pair in zip(ring, ring[1:] + ring[:1], strict=True)]


def broken_nics(failed: Iterable[tuple[Nic, Nic]]) -> set[str]:
    """NICs whose trials with both neighbours failed."""
    failures = Counter(nic.name for pair in failed for nic in pair)
    return {name for name, count in failures.items() if count > 1}


def after_trials(diagnosis: Diagnosis, broken: Collection[str], tried: Collection[str]) -> tuple[Diagnosis, ...]:
    """The diagnosis after trials of NICs: one for each broken NIC, or the same if the trials do not decide.

    If most NICs are broken the fabric is to blame, and the diagnosis stays.
    """
    if not tried or 2 * len(broken) > len(tried):
        return (diagnosis,)
    if not broken:
        evidence = f"trials of all {len(tried)} NICs succeeded"
        left = tuple(part for part in diagnosis.suspects if part.kind != "nic")
        component, others = (left[0], left[1:]) if left else (diagnosis.component, diagnosis.alternatives)
        return (_changed(diagnosis, component, others, diagnosis.confidence, evidence),)
    nics = [Component("nic", name) for name in tried if name in broken]
    evidence = f"trials of {len(tried)} NICs: all succeeded but those of {', '.join(nic.name for nic in nics)}"
    return tuple(_changed(diagnosis, nic, (), max(diagnosis.confidence, _TRIED), evidence) for nic in nics)


def after_probes(diagnosis: Diagnosis, shares: Sequence[float]) -> Diagnosis:
    """The diagnosis after its probes, which reached these shares of their NICs' rates; the same if they do not decide.

    The remaining alternatives are those that no transfer can tell from the component.
    """
    suspects = diagnosis.suspects
    bad = probe_outcomes(shares, diagnosis.figures.get("times_as_long", _TIMES))
    left = remaining_suspects(suspects, diagnosis.probes, bad)
    if not left or len(left) == len(suspects):
        return diagnosis
    component, *others = (suspect for suspect in suspects if suspect in left)
    evidence = "probes, relative to the best of them: " + ", ".join(
        f"{probe.source}>{probe.destination} {share / max(shares):.0%}"
        for probe, share in zip(diagnosis.probes, shares, strict=True)
    )
    return msgspec.structs.replace(
        diagnosis,
        component=component,
        alternatives=tuple(others),
        confidence=max(diagnosis.confidence, _TRIED),
        evidence=(*diagnosis.evidence, evidence),
        refuted_by=f"a probe at full rate across {component}",
        probed=True,
    )


def _changed(
    diagnosis: Diagnosis, component: Component, alternatives: tuple[Component, ...], confidence: float, evidence: str
) -> Diagnosis:
    syndrome = Syndrome.COMMUNICATION_HANG if component.kind in ("nic", "path") else diagnosis.syndrome
    return msgspec.structs.replace(
        diagnosis,
        syndrome=syndrome,
        component=component,
        alternatives=alternatives,
        confidence=confidence,
        evidence=(*diagnosis.evidence, evidence),
    )
