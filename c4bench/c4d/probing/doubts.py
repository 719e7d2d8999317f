"""Findings that probes may make more exact: what to send next, and what the answers leave of each finding."""

from collections import deque
from collections.abc import Collection

import msgspec

from c4bench.c4d.confidence import confidence
from c4bench.c4d.diagnosis import Finding
from c4bench.c4d.ingest.known_paths import PathLinks
from c4bench.c4d.probing.delivery_probes import DeliveryProbes, Flow
from c4bench.c4d.probing.expiring_probes import CanAnswer, ExpiringProbes, Shown
from c4bench.c4d.probing.probes import remaining_suspects
from c4bench.model.diagnosis import Cause, Component
from c4bench.model.recording import DeliveriesCounted, Delivery, ExpiringProbe, HopsProbed, ProbingEnded

# What loses packets, all or some, or reorders them.
_LOSSY = frozenset({Cause.CONNECTION_STALLED, Cause.CONNECTION_LOST, Cause.PACKETS_LOST})
# Doubts that nobody has probed for are forgotten when there are so many newer ones.
_KEPT = 16
# So many paths that have nothing to do with a doubt are compared with those that do.
_APART = 2
# Numbered packets are sent so many times, unless one suspect is far ahead before.
_ROUNDS = 4


class _Doubt(msgspec.Struct):
    """A finding, when its alarm was raised (s, master's clock), and what probes have shown.

    `paths` are those that may be probed; `rounds` is how many times numbered packets were counted.
    """

    finding: Finding
    alarmed_s: float
    paths: PathLinks
    deliveries: list[Delivery] = []
    rounds: int = 0
    shown: list[Shown] = []

    @property
    def suspects(self) -> tuple[Component, ...]:
        return (self.finding.component, *self.finding.alternatives)

    def next_flows(self) -> tuple[Flow, ...]:
        """The flows on which more numbered packets would tell the suspects apart."""
        probes = DeliveryProbes(self.suspects, self.paths)
        more = not self.rounds or (self.rounds < _ROUNDS and probes.left(self.deliveries)[1])
        return probes.flows() if more else ()

    def next_probes(self, can_answer: CanAnswer) -> tuple[ExpiringProbe, ...]:
        """The fewest further packets that expire on the way and tell dead suspects apart."""
        if len(dead := self._dead()) < 2:
            return ()
        return ExpiringProbes(dead, self.paths).next_probes(self._not_cleared(dead), self.shown, can_answer)

    def ingest_answers(self, record: HopsProbed) -> None:
        """Take in which packets that expired were answered."""
        self.shown += ExpiringProbes(self._dead(), self.paths).outcomes(record.probes, record.answers)

    def left(self) -> tuple[Component, ...]:
        """The suspects that all probes together leave, in their order; all of them if probes do not tell."""
        lossy, _ = DeliveryProbes(self.suspects, self.paths).left(self.deliveries)
        dead = self._dead()
        return tuple(sorted(self._not_cleared(dead) if dead else lossy, key=self._order)) or self.suspects

    def _dead(self) -> frozenset[Component]:
        """The suspects that lost packets leave, if nothing arrives that crosses them."""
        probes = DeliveryProbes(self.suspects, self.paths)
        left, _ = probes.left(self.deliveries)
        return left if left and probes.dead(left, self.deliveries) else frozenset()

    def _not_cleared(self, dead: frozenset[Component]) -> frozenset[Component]:
        """Those of the dead that agree with all packets that expired; all if no single one does."""
        touched, bad = [one for one, _ in self.shown], [bad for _, bad in self.shown]
        return remaining_suspects(dead, touched, bad) or dead

    def _order(self, component: Component) -> tuple[int, str]:
        names = [(one.kind, one.name) for one in self.suspects]
        return names.index((component.kind, component.name)), component.side


class Doubts:
    """The open doubts of one job."""

    def __init__(self, paths: PathLinks) -> None:
        self._paths = paths
        self._open: deque[_Doubt] = deque(maxlen=_KEPT)
        self._ended: list[_Doubt] = []
        self._named: deque[frozenset[Component]] = deque(maxlen=_KEPT)

    @property
    def any_open(self) -> bool:
        """Whether there is a doubt that nobody has probed for to the end."""
        return bool(self._open)

    def add(self, finding: Finding, alarmed_s: float, nics: Collection[str]) -> None:
        """Note a new finding, and open a doubt if probes between these NICs of the job may end it."""
        self._named.append(frozenset((finding.component, *finding.alternatives)))
        if finding.cause in _LOSSY and (finding.alternatives or _without_side(finding)):
            self._open.append(_Doubt(finding, alarmed_s, self._relevant(self._named[-1], nics)))

    def _relevant(self, suspects: Collection[Component], nics: Collection[str]) -> PathLinks:
        """The paths between these NICs that have to do with suspects, and some that do not, to compare them with.

        A path whose links nobody knows is none of them: a flow with a source port of the NIC's choice has such a path.
        """
        names = {part for one in suspects for part in (one.name.split(">") if one.kind == "path" else [one.name])}
        known = (path for path, hops in self._paths.items() if hops)
        between = (path for path in known if path[0] != path[1] and path[0] in nics and path[1] in nics)
        near: dict[Flow, tuple[str, ...]] = {}
        apart: dict[Flow, tuple[str, ...]] = {}
        for path in between:
            hops = self._paths[path]
            if not names.isdisjoint((*path[:2], *hops)):
                near[path] = hops
            elif len(apart) < _APART:
                apart[path] = hops
        return near | apart

    def next_probes(self, can_answer: CanAnswer) -> dict[ExpiringProbe, str]:
        """The fewest further packets that expire on the way for all doubts, with the address that should answer each.

        Of one path only one at a time.
        """
        wanted: dict[tuple[str, str, int], ExpiringProbe] = {}
        for doubt in self._open:
            for probe in doubt.next_probes(can_answer):
                wanted.setdefault(probe[:3], probe)
        return {probe: self._paths[path][probe.hops - 1] for path, probe in wanted.items()}

    def next_flows(self) -> tuple[Flow, ...]:
        """The flows on which to send numbered packets for all doubts."""
        return tuple(dict.fromkeys(flow for doubt in self._open for flow in doubt.next_flows()))

    def ingest(self, record: HopsProbed | DeliveriesCounted | ProbingEnded) -> None:
        """Take in what probes have shown, or that there will be no more."""
        match record:
            case HopsProbed():
                for doubt in self._open:
                    doubt.ingest_answers(record)
            case DeliveriesCounted():
                for doubt in self._open:
                    doubt.deliveries += record.deliveries
                    doubt.rounds += 1
            case ProbingEnded():
                self._ended += self._open
                self._open.clear()

    def ended(self) -> list[tuple[Finding, float]]:
        """Once, after the last probe: the findings that probes have made more exact, with the times of their alarms.

        What has been named before, or is left of several, is not named again.
        """
        ended, self._ended = self._ended, []
        refined: list[tuple[Finding, float]] = []
        for doubt in ended:
            left = doubt.left()
            if frozenset(left) not in self._named:
                self._named.append(frozenset(left))
                refined.append((_refined(doubt, left), doubt.alarmed_s))
        return refined


def _without_side(finding: Finding) -> bool:
    return finding.cause is Cause.PACKETS_LOST and finding.component.kind == "nic" and not finding.component.side


def _refined(doubt: _Doubt, left: tuple[Component, ...]) -> Finding:
    """The finding with what probes have left."""
    finding, (component, *others) = doubt.finding, left
    evidence = [*finding.evidence[:1], _seen(doubt)]
    if others:
        evidence.append("no probe can tell it from " + " or ".join(map(str, others)))
    return msgspec.structs.replace(
        finding,
        component=component,
        alternatives=tuple(others),
        confidence=confidence(finding.cause, component.kind, len(others), probed=True),
        evidence=tuple(evidence),
        refuted_by=f"numbered packets that cross {component} and all arrive",
        probed=True,
    )


def _seen(doubt: _Doubt) -> str:
    sent = sum(2 * one.sent for one in doubt.deliveries)
    lost = sent - sum(one.data + one.acks for one in doubt.deliveries)
    late = sum(one.late for one in doubt.deliveries)
    silent = sum(bad is True for _, bad in doubt.shown)
    hops = (
        f"; {silent} of {len(doubt.shown)} kinds of packets that expire on the way met silence" if doubt.shown else ""
    )
    return (
        f"of {sent} numbered packets {lost} were lost, and some {late} times overtaken, nearly always across it{hops}"
    )
