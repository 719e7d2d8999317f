"""Findings that probes may make more exact: what to send next, and what the answers leave of each finding."""

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Collection
from typing import ClassVar, NamedTuple

import msgspec

from c4bench.c4d.act.answers import DeliveryProbes, TrainProbes
from c4bench.c4d.act.expiring_probes import CanAnswer, ExpiringProbes, Shown
from c4bench.c4d.act.flows import Flow, remaining_suspects
from c4bench.c4d.confidence import confidence
from c4bench.c4d.diagnosis import Alarmed, Finding
from c4bench.c4d.observe.shared_fabric import PathLinks
from c4bench.model.diagnosis import Cause, Component
from c4bench.model.recording import (
    DeliveriesCounted,
    Delivery,
    DoubtReport,
    ExpiringProbe,
    HopsProbed,
    ProbingBegan,
    ProbingEnded,
    TimedFlow,
    TrainsTimed,
)

# Numbered packets or trains are sent so many times, unless one suspect is far ahead before.
_ROUNDS = 4


class Doubt(msgspec.Struct):
    """A finding, when its alarm was raised (s, master's clock), and the paths that may be probed.

    `rounds` is how many times numbered packets or trains were sent for it. It is not named before `held_until_s`.
    """

    finding: Finding
    alarmed_s: float
    paths: PathLinks
    rounds: int = 0
    held_until_s: float = -math.inf
    # What would refute what is left.
    REFUTED_BY: ClassVar[str]

    @property
    def suspects(self) -> tuple[Component, ...]:
        """The components that may be to blame."""
        return self.finding.suspects

    def next_flows(self) -> tuple[Flow, ...]:
        """The flows on which more numbered packets would tell the suspects apart."""
        return ()

    def next_trains(self) -> tuple[Flow, ...]:
        """The flows on which more packet trains would."""
        return ()

    def next_probes(self, can_answer: CanAnswer) -> tuple[ExpiringProbe, ...]:  # noqa: ARG002  (the interface of a doubt)
        """The fewest further packets that expire on the way and would."""
        return ()

    @abstractmethod
    def ingest(self, record: DoubtReport) -> None:
        """Take in what probes have shown."""

    @abstractmethod
    def left(self, named: Collection[Component] = ()) -> tuple[Component, ...]:
        """The suspects that all probes together leave, in their order; all of them if probes do not tell.

        `named` is what other findings have named.
        """

    def refuted(self) -> bool:
        """Whether probes that cross the suspects fare as well as others."""
        return False

    @abstractmethod
    def seen(self) -> str:
        """What probes have shown, in words."""

    def refined(self, left: tuple[Component, ...]) -> Finding:
        """The finding with what probes have left."""
        finding, (component, *others) = self.finding, left
        evidence = [*finding.evidence[:1], self.seen()]
        if others:
            evidence.append("no probe can tell it from " + " or ".join(map(str, others)))
        return msgspec.structs.replace(
            finding,
            component=component,
            alternatives=tuple(others),
            confidence=confidence(_other_cables(component, others)),
            evidence=tuple(evidence),
            refuted_by=self.REFUTED_BY.format(component),
            probed=True,
        )

    def order(self, component: Component) -> tuple[int, str]:
        """The place of a component among the suspects, a NIC's whichever side is named."""
        names = [(one.kind, one.name) for one in self.suspects]
        return names.index((component.kind, component.name)), component.side


class SlowDoubt(Doubt):
    """What is slow is sought by packet trains; `timed` are those of each round."""

    timed: list[tuple[TimedFlow, ...]] = []
    REFUTED_BY: ClassVar[str] = "packet trains that cross {} and are as fast as others"

    def next_trains(self) -> tuple[Flow, ...]:
        """The flows on which more packet trains would tell the suspects apart."""
        probes = TrainProbes(self.suspects, self.paths)
        more = not self.rounds or (self.rounds < _ROUNDS and probes.left(self.timed).more)
        return probes.flows() if more else ()

    def ingest(self, record: DoubtReport) -> None:
        """Take in how trains arrived."""
        if isinstance(record, TrainsTimed):
            self.timed.append(record.flows)
            self.rounds += 1

    def left(self, named: Collection[Component] = ()) -> tuple[Component, ...]:
        """The suspects that trains leave; all of them if they do not tell."""
        left = TrainProbes(self.suspects, self.paths).left(self.timed, named).suspects
        return tuple(sorted(left, key=self.order)) or self.suspects

    def refuted(self) -> bool:
        """Whether trains that cross the suspects are as fast as others."""
        return bool(self.timed) and TrainProbes(self.suspects, self.paths).refuted(self.timed)

    def seen(self) -> str:
        """How many trains were timed."""
        trains = sum(len(one.trains) for flows in self.timed for one in flows)
        return f"of {trains} packet trains nearly all that cross it were slow, and hardly any others"


class LossDoubt(Doubt):
    """What loses packets is sought by numbered packets, what is dead also by packets that expire on the way."""

    deliveries: list[Delivery] = []
    shown: list[Shown] = []
    REFUTED_BY: ClassVar[str] = "numbered packets that cross {} and all arrive"

    def next_flows(self) -> tuple[Flow, ...]:
        """The flows on which more numbered packets would tell the suspects apart."""
        probes = DeliveryProbes(self.suspects, self.paths)
        more = not self.rounds or (self.rounds < _ROUNDS and probes.left(self.deliveries).more)
        return probes.flows() if more else ()

    def next_probes(self, can_answer: CanAnswer) -> tuple[ExpiringProbe, ...]:
        """The fewest further packets that expire on the way and tell dead suspects apart."""
        if len(dead := self._dead()) < 2:
            return ()
        return ExpiringProbes(dead, self.paths).next_probes(self._not_cleared(dead), self.shown, can_answer)

    def ingest(self, record: DoubtReport) -> None:
        """Take in which numbered packets arrived, or which packets that expired were answered."""
        match record:
            case HopsProbed():
                self.shown += ExpiringProbes(self._dead(), self.paths).outcomes(record.probes, record.answers)
            case DeliveriesCounted():
                self.deliveries += record.deliveries
                self.rounds += 1

    def left(self, named: Collection[Component] = ()) -> tuple[Component, ...]:
        """The suspects that all probes together leave, in their order; all of them if probes do not tell."""
        lossy, _ = DeliveryProbes(self.suspects, self.paths).left(self.deliveries, named)
        dead = self._dead(named)
        return tuple(sorted(self._not_cleared(dead) if dead else lossy, key=self.order)) or self.suspects

    def seen(self) -> str:
        """How many packets were lost or overtaken, and met silence."""
        sent = sum(2 * one.sent for one in self.deliveries)
        lost = sent - sum(one.data + one.acks for one in self.deliveries)
        late = sum(one.late for one in self.deliveries)
        silent = sum(bad is True for _, bad in self.shown)
        hops = (
            f"; {silent} of {len(self.shown)} kinds of packets that expire on the way met silence" if self.shown else ""
        )
        return (
            f"of {sent} numbered packets {lost} were lost, and some {late} times overtaken, nearly always across it"
            f"{hops}"
        )

    def _dead(self, named: Collection[Component] = ()) -> frozenset[Component]:
        """The suspects that lost packets leave, if nothing arrives that crosses them."""
        probes = DeliveryProbes(self.suspects, self.paths)
        left, _ = probes.left(self.deliveries, named)
        return left if left and probes.dead(left, self.deliveries) else frozenset()

    def _not_cleared(self, dead: frozenset[Component]) -> frozenset[Component]:
        """Those of the dead that agree with all packets that expired; all if no single one does."""
        touched, bad = [one for one, _ in self.shown], [bad for _, bad in self.shown]
        return remaining_suspects(dead, touched, bad) or dead


# What loses packets, all or some, or reorders them.
_LOSSY = frozenset({Cause.CONNECTION_STALLED, Cause.CONNECTION_LOST, Cause.PACKETS_LOST})
# Doubts that nobody has probed for are forgotten when there are so many newer ones.
_KEPT = 16
# So many paths that have nothing to do with a doubt are compared with those that do.
_APART = 2
# The share of the posterior from which on a slow component is named without asking.
_SURE = 0.9
# How long (s) a doubtful finding is held until probes begin, and then for them: a round of trains takes 1.5 s from NICs
# of 200 Mbit/s.
_HELD_S, _ASKED_S = 1.0, 2.5


class Ended(NamedTuple):
    """Findings to `name`, with the times of their alarms; those held that probes have `refuted`, and have `upheld`."""

    name: list[Alarmed]
    refuted: list[Finding]
    upheld: list[Finding]


class Doubts:
    """The open doubts of one job."""

    def __init__(self, paths: PathLinks) -> None:
        self._paths = paths
        self._open: deque[Doubt] = deque(maxlen=_KEPT)
        self._ended: list[Doubt] = []
        # What each finding has named, likeliest first.
        self._named: deque[tuple[Component, ...]] = deque(maxlen=_KEPT)

    @property
    def any_open(self) -> bool:
        """Whether there is a doubt that nobody has probed for to the end."""
        return bool(self._open)

    def add(self, finding: Finding, alarmed_s: float, nics: Collection[str], used: Collection[Flow] = ()) -> None:
        """Note a new finding, and open a doubt if probes between these NICs of the job may end it.

        Of the paths that tell as much, those that the job has `used` are probed: they are known best.
        """
        self._named.append(finding.suspects)
        if finding.cause in _LOSSY and (finding.alternatives or _without_side(finding)):
            relevant = self._relevant(finding.suspects, nics)
            self._open.append(LossDoubt(finding, alarmed_s, _in_use_first(relevant, used)))

    def hold(
        self, finding: Finding, alarmed_s: float, now_s: float, nics: Collection[str], used: Collection[Flow] = ()
    ) -> bool:
        """Open a doubt on something slow, as `add` does; return whether it is not to be named before probes have told.

        A path alone is hardly ever to blame, and a rank may be where the network is as it was.
        """
        path = finding.component.kind == "path" or any(one.kind == "rank" for one in finding.suspects)
        if finding.cause is not Cause.TRANSFER_SLOW or not (finding.alternatives or path):
            return False
        sure = not path and (finding.posterior is None or finding.posterior.share >= _SURE)
        relevant = self._relevant(finding.suspects, nics)
        until_s = -math.inf if sure else now_s + _HELD_S
        paths = _in_use_first({**relevant, **self._back(relevant)}, used)
        doubt = SlowDoubt(finding, alarmed_s, paths, held_until_s=until_s)
        if not doubt.next_trains():
            return False
        self._open.append(doubt)
        return not sure

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

    def _back(self, paths: Collection[Flow]) -> PathLinks:
        """The known ways back of paths."""
        pairs = {(destination, source) for source, destination, _ in paths}
        return {path: hops for path, hops in self._paths.items() if hops and path[:2] in pairs}

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

    def next_trains(self) -> tuple[Flow, ...]:
        """The flows on which to send packet trains for all doubts."""
        return tuple(dict.fromkeys(flow for doubt in self._open for flow in doubt.next_trains()))

    def ingest(self, record: DoubtReport) -> None:
        """Take in what probes have shown, or that there will be no more. What was sent for one doubt tells all."""
        known = {flow: hops for flow in _flows(record) if (hops := self._paths.get(flow))}
        for doubt in self._open:
            if isinstance(record, ProbingBegan) and doubt.held_until_s > -math.inf:
                doubt.held_until_s = record.at_s + _ASKED_S
            doubt.paths = {**doubt.paths, **known}
            doubt.ingest(record)
        if isinstance(record, ProbingEnded):
            self._ended += self._open
            self._open.clear()

    def ended(self, now_s: float) -> Ended:
        """Once, after the last probe: the findings that probes have made more exact.

        What has been named before, or is left of several, is not named again. A finding that was held is named as it is
        if probes do not refute it in time.
        """
        ended, self._ended = self._ended, []
        found, refuted, upheld = list[Alarmed](), list[Finding](), list[Finding]()
        others = {first for first, *_ in (*self._named, *(doubt.suspects for doubt in ended))}
        for doubt in ended:
            left = doubt.left(others)
            held = doubt.held_until_s > -math.inf
            if held and left == doubt.suspects and doubt.refuted():
                refuted.append(doubt.finding)
                continue
            upheld += [doubt.finding] * held
            if set(left) not in map(set, self._named):
                self._named.append(left)
                found.append((doubt.refined(left) if left != doubt.suspects else doubt.finding, doubt.alarmed_s))
        for doubt in self._overdue(now_s):
            if doubt.refuted():
                self._open.remove(doubt)
                refuted.append(doubt.finding)
            else:
                doubt.held_until_s = -math.inf
                self._named.append(doubt.suspects)
                found.append((doubt.finding, doubt.alarmed_s))
        return Ended(found, refuted, upheld)

    def _overdue(self, now_s: float) -> list[Doubt]:
        """The open doubts whose findings have been held for long enough."""
        return [doubt for doubt in self._open if -math.inf < doubt.held_until_s <= now_s]


def _other_cables(component: Component, others: Collection[Component]) -> int:
    """How many more cables the others are, if two links that no probe tells apart are the directions of one."""
    return sum(one.kind == component.kind for one in others) // 2


def _in_use_first(paths: PathLinks, used: Collection[Flow]) -> PathLinks:
    return dict(sorted(paths.items(), key=lambda path: (path[0] not in used, path)))


def _flows(record: DoubtReport) -> tuple[Flow, ...]:
    """The flows on which packets were sent that a report is about."""
    match record:
        case DeliveriesCounted():
            return tuple(one[:3] for one in record.deliveries)
        case TrainsTimed():
            return tuple(one[:3] for one in record.flows)
    return ()


def _without_side(finding: Finding) -> bool:
    return finding.cause is Cause.PACKETS_LOST and finding.component.kind == "nic" and not finding.component.side
