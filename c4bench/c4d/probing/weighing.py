"""Which component is to blame for packets that fared badly, by what the packets crossed. Pure.

If a component is to blame, what crosses it fares badly with one probability, and everything else hardly ever.
Bayes' rule weighs all components by that: a few bad packets are enough where all of them crossed the same component.

Which component is slow, by packet trains on known paths: a narrow one spreads them, or it makes them late. How far a
train is spread is seen by one clock, so it tells the direction. How late it is depends on two: the shortest delay on
the way back is added, which cancels how far they differ. That says by which NICs and links packets are late, but not by
which side of a NIC: C4D knows that from the past of the job's own delays. Pure.
"""

import math
import statistics
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from c4bench.c4d.ingest.shared_fabric import PathLinks
from c4bench.c4d.probing.probes import FlowComponents, fewest
from c4bench.model.diagnosis import Component
from c4bench.model.recording import Delivery, TimedFlow

Flow = tuple[str, str, int]

# How much likelier a suspect is that is preferred to another, or to no fault at all (logarithm).
_FAR = math.log(1000.0)
# How much less likely a fault of the path between two NICs alone is before (logarithm): no campaign has one.
_UNLIKELY = _FAR
# So many flows cross every suspect, and so many none.
_WITNESSES = 2


class Outcome(NamedTuple):
    """How many packets of a `flow` fared badly, of how many; they cross these components."""

    flow: Hashable
    crosses: frozenset[Component]
    bad: int
    packets: int


class Weighing:
    """The evidence of `outcomes` against `parts`, where a `healthy` share of packets fares badly without any fault.

    Of those that cross what is to blame `to_blame` do; None if that is not known.
    """

    def __init__(
        self,
        outcomes: Iterable[Outcome],
        parts: frozenset[Component],
        healthy: float,
        to_blame: float | None = None,
    ) -> None:
        self._parts = parts
        crossing: dict[Component, list[Outcome]] = {}
        for one in outcomes:
            for part in one.crosses:
                if part.kind != "path" or part in parts:
                    crossing.setdefault(part, []).append(one)
        self._weighed = {part: _weighed(part, found, healthy, to_blame) for part, found in crossing.items()}

    @property
    def gain(self) -> float:
        """The evidence against the worst suspect."""
        return max((one.gain for part, one in self._weighed.items() if part in self._parts), default=0.0)

    def left(self, named: Collection[frozenset[Component]] = ()) -> tuple[frozenset[Component], bool]:
        """The suspects, with their sides, that are left, and whether more packets may tell more.

        Empty while nothing is beyond chance, or if what explains it best is no suspect. That includes what explains it
        as well and is `named` already: all that another finding leaves.
        """
        weighed = self._weighed
        own = {part: one for part, one in weighed.items() if part in self._parts and one.gain > _FAR}
        if not own:
            return frozenset(), True
        totals = {part: one.gain + _beside(one, weighed.values()).gain for part, one in weighed.items()}
        most = max(totals[part] for part in own)
        # One that explains alone what two would explain together is better.
        best = max(
            (one for part, one in own.items() if math.isclose(totals[part], most)), key=lambda one: len(one.flows)
        )
        alike = {part for part, one in weighed.items() if totals[part] > most - _FAR and one.flows & best.flows}
        elsewhere = any(one <= alike and one.isdisjoint(self._parts) for one in named)
        if elsewhere or any(totals[part] > most + _FAR for part in alike):
            return frozenset(), False
        second = _beside(best, weighed.values())
        also = {part for part, one in own.items() if _beside_as_well(one, best, second)}
        left = (alike & own.keys()) | also
        whole = [part for part in left if part.kind == "nic" and not part.side]
        cables = {link for nic in whole for link in _cable(nic, own)}
        of_whole = cables | {side for nic in whole for side in sides(nic) if side.side}
        more = any(weighed[part].flows != best.flows for part in (alike & own.keys()) - of_whole)
        return frozenset(left - of_whole | cables), more


class _Weighed(NamedTuple):
    """How many times as likely bad packets are if a component is to blame, than if none is (logarithm); its flows."""

    gain: float
    flows: frozenset[Hashable]


def _weighed(part: Component, outcomes: Sequence[Outcome], healthy: float, to_blame: float | None) -> _Weighed:
    bad = sum(one.bad for one in outcomes)
    good = sum(one.packets for one in outcomes) - bad
    # Any probability is as likely as any other before: the mean over all of them is a Beta function.
    unknown = math.lgamma(bad + 1) + math.lgamma(good + 1) - math.lgamma(bad + good + 2)
    gain = (_chance(bad, good, to_blame) if to_blame else unknown) - _chance(bad, good, healthy)
    unlikely = _UNLIKELY if part.kind == "path" else 0.0
    return _Weighed(gain - unlikely, frozenset(one.flow for one in outcomes))


def _chance(bad: int, good: int, share: float) -> float:
    """How likely it is that so many packets are bad of which a `share` is (logarithm)."""
    return bad * math.log(share) + good * math.log1p(-share)


_NOTHING = _Weighed(0.0, frozenset())


def _beside(one: _Weighed, every: Iterable[_Weighed]) -> _Weighed:
    """What else is to blame, for packets that do not cross it: the two directions of a cable fail together."""
    others = (other for other in every if other.gain > _FAR and not one.flows & other.flows)
    return max(others, key=lambda other: other.gain, default=_NOTHING)


def _beside_as_well(one: _Weighed, best: _Weighed, second: _Weighed) -> bool:
    """Whether a component may be to blame beside the best in place of the second."""
    return one.gain > second.gain - _FAR and bool(one.flows & second.flows) and not one.flows & best.flows


def _cable(nic: Component, weighed: Mapping[Component, _Weighed]) -> list[Component]:
    """The links that exactly the packets of one side of a NIC cross: no packet can tell the NIC from its cable."""
    of_sides = [one.flows for part, one in weighed.items() if part in sides(nic) and part.side]
    return [part for part, one in weighed.items() if part.kind == "link" and one.flows in of_sides]


def sides(one: Component) -> tuple[Component, ...]:
    """A NIC with either side and both, since a side that was named may be the wrong one; any other as it is."""
    return tuple(Component("nic", one.name, side) for side in ("", "tx", "rx")) if one.kind == "nic" else (one,)


def crossed(flow: Flow, hops: tuple[str, ...]) -> frozenset[Component]:
    """What packets of a flow cross whose links are known."""
    source, destination, _ = flow
    ends = {Component("nic", source), Component("nic", source, "tx")}
    ends |= {Component("nic", destination), Component("nic", destination, "rx")}
    links = {Component("link", hop) for hop in hops}
    return frozenset({*ends, *links, Component("path", f"{source}>{destination}")})


def telling_flows(parts: Collection[Component], paths: PathLinks) -> tuple[Flow, ...]:
    """The fewest flows that tell `parts` apart, and more, so that some cross each of them, and some none."""
    suspects = frozenset(parts)
    kinds: dict[FlowComponents, list[Flow]] = {}
    for path, hops in sorted(paths.items()):
        of_kind = kinds.setdefault(FlowComponents(crossed(path, hops) & suspects, frozenset()), [])
        if len(of_kind) < _WITNESSES and all(path[0] != other[0] for other in of_kind):
            of_kind.append(path)
    first = {flows[0]: kind for kind, flows in kinds.items()}
    in_order = sorted(suspects, key=str)
    chosen, _ = fewest(first, in_order)
    chosen += [flow for flow, kind in first.items() if not kind.crosses]
    wanted = dict.fromkeys(flow for one in chosen for flow in kinds[first[one]])
    for part in in_order:
        crossing = [flow for kind, flows in kinds.items() if part in kind.crosses for flow in flows]
        missing = _WITNESSES - sum(flow in wanted for flow in crossing)
        wanted.update(dict.fromkeys([flow for flow in crossing if flow not in wanted][: max(0, missing)]))
    return tuple(wanted)


# The probability that a healthy path loses or reorders a packet: congestion may drop one.
_LOST_IN_HEALTH = 1e-4


class _Counted(NamedTuple):
    """How many of some packets were bad."""

    bad: int
    packets: int


# What may happen to packets: they are lost, they are lost if they are acknowledgements, or they are overtaken.
_MANNERS: tuple[Callable[[Delivery], _Counted], ...] = (
    lambda one: _Counted(2 * one.sent - one.data - one.acks, 2 * one.sent),
    lambda one: _Counted(one.sent - one.acks, one.sent),
    lambda one: _Counted(one.late, one.data + one.acks),
)


class DeliveryProbes:
    """Numbered packets on these `paths`, for `suspects`."""

    def __init__(self, suspects: Collection[Component], paths: PathLinks) -> None:
        self._paths = paths
        self._parts = frozenset(part for one in suspects for part in sides(one))

    def flows(self) -> tuple[Flow, ...]:
        """The fewest flows that tell the suspects apart, and more, so that some cross each of them, and some none."""
        return telling_flows(self._parts, self._paths)

    def left(
        self, deliveries: Iterable[Delivery], named: Collection[frozenset[Component]] = ()
    ) -> tuple[frozenset[Component], bool]:
        """The suspects, with their sides, that lost or overtaken packets leave, and whether more may tell more.

        Empty while nothing is beyond chance, or if what explains it best is no suspect; `named` as in `Weighing.left`.
        """
        kept = [one for one in deliveries if one[:3] in self._paths]
        every = [self._weigh(kept, manner) for manner in _MANNERS]
        return max(every, key=lambda one: one.gain).left(named)

    def dead(self, parts: Collection[Component], deliveries: Iterable[Delivery]) -> bool:
        """Whether nothing that crosses any of these arrived."""
        kept = (one for one in deliveries if one[:3] in self._paths)
        crossing = [one for one in kept if not crossed(one[:3], self._paths[one[:3]]).isdisjoint(parts)]
        return not any(one.data or one.acks for one in crossing)

    def _weigh(self, deliveries: Iterable[Delivery], manner: Callable[[Delivery], _Counted]) -> Weighing:
        """The evidence against everything that the packets crossed; of paths only against suspects."""
        outcomes = [Outcome(one[:3], crossed(one[:3], self._paths[one[:3]]), *manner(one)) for one in deliveries]
        return Weighing(outcomes, self._parts, _LOST_IN_HEALTH)


# At least this share of the trains meets the job's own data, or something else that makes them slow.
_SLOW_IN_HEALTH = 0.05
# Nearly all trains that cross a slow component are slow: what waits behind it for other traffic may close up again.
_TO_BLAME = 0.95
# What is sought makes trains longer by this share; C4D promises to find a slowdown of a tenth.
_SPREAD = 0.08
# What is sought makes a way there and back as many times longer, and by more than a train takes: more hops do not.
_LATE = 3.0
# A train that is faster than its NICs, or slower than anything that still works, was not timed right.
_FASTEST, _SLOWEST = 0.5, 1e4
_LONGEST_S = 5.0
# So many pairs of NICs are compared with the others.
_APART = 2


class _Measured(NamedTuple):
    """Some times of trains that cross the same components."""

    flow: Hashable
    crosses: frozenset[Component]
    values: Sequence[float]

    @property
    def undisturbed(self) -> float:
        """What other traffic has not made longer: it meets many trains of a busy job, but hardly nine of ten."""
        return sorted(self.values)[len(self.values) // 10]


class _Compared(NamedTuple):
    """How many times of each flow are bad; empty while none is beyond what is usual."""

    outcomes: list[Outcome]


class TrainProbes:
    """Packet trains on these `paths`, for `suspects`."""

    def __init__(self, suspects: Collection[Component], paths: PathLinks) -> None:
        self._suspects = frozenset(suspects)
        self._parts = frozenset(part for one in suspects for part in sides(one))
        self._crossed = {flow: crossed(flow, hops) for flow, hops in sorted(paths.items())}
        self._paths = paths
        self._known_sides = {one.name: one.side for one in suspects if one.kind == "nic" and one.side}
        self._between: dict[tuple[str, str], list[Flow]] = {}
        for flow in self._crossed:
            self._between.setdefault(flow[:2], []).append(flow)

    def flows(self) -> tuple[Flow, ...]:
        """The fewest flows that tell the suspects apart, with ways back, and some ways there and back that cross none.

        Empty if no flow tells any of the suspects apart.
        """
        kinds = {parts & self._suspects: flow for flow, parts in self._crossed.items()}
        touched = {flow: FlowComponents(kind, frozenset()) for kind, flow in kinds.items()}
        telling, _ = fewest(touched, sorted(self._suspects, key=str))
        if not telling:
            return ()
        there = telling_flows(self._parts, self._paths)
        ways = [(flow, back) for flow in there if (back := self._back(flow))]
        return tuple(dict.fromkeys([*there, *chain.from_iterable(ways), *self._apart()]))

    def left(self, rounds: Sequence[Sequence[TimedFlow]]) -> tuple[frozenset[Component], bool]:
        """The suspects, with their sides, that slow trains leave, and whether more may tell more.

        Empty while nothing is beyond chance, or if what explains it best is no suspect.
        """
        left, more = self._weigh(self._by_spread(rounds))
        if left or not more:
            return left, more
        left, more = self._weigh(self._by_delay(rounds))
        return self._of_known_sides(left), more

    def outcomes(self, rounds: Sequence[Sequence[TimedFlow]]) -> list[Outcome]:
        """How many trains of each flow were slow by their spread, or else of each way there and back by their delay."""
        for compared in (self._by_spread(rounds), self._by_delay(rounds)):
            if compared and compared.outcomes:
                return compared.outcomes
        return []

    def _by_spread(self, rounds: Sequence[Sequence[TimedFlow]]) -> "_Compared | None":
        return self._compare(self._spreads(rounds), lambda usual: _SPREAD * usual)

    def _by_delay(self, rounds: Sequence[Sequence[TimedFlow]]) -> "_Compared | None":
        train_s = max((8 * one.train_bytes / one.rate_bps for one in self._known(rounds)), default=0.0)
        return self._compare(self._delays(rounds), lambda usual: train_s + (_LATE - 1) * usual)

    def _back(self, flow: Flow) -> Flow | None:
        """The way back that crosses the fewest suspects."""
        ways = self._between.get((flow[1], flow[0]), ())
        return min(ways, key=lambda way: (len(self._crossed[way] & self._parts), way), default=None)

    def _apart(self) -> list[Flow]:
        """Ways between two pairs of NICs and back that cross no suspect, to compare others with."""
        clear = (flow for flow, parts in self._crossed.items() if parts.isdisjoint(self._parts))
        found: dict[frozenset[str], tuple[Flow, Flow]] = {}
        for flow in clear:
            back = self._back(flow)
            if back and self._crossed[back].isdisjoint(self._parts):
                found.setdefault(frozenset(flow[:2]), (flow, back))
            if len(found) == _APART:
                break
        return list(chain.from_iterable(found.values()))

    def _spreads(self, rounds: Iterable[Sequence[TimedFlow]]) -> list[_Measured]:
        """How many times as long as at full rate trains take from their first packet to the last."""
        values: dict[Flow, list[float]] = {}
        for one in self._known(rounds):
            times = (train.s_per_byte * one.rate_bps / 8 for train in one.trains)
            values.setdefault(one[:3], []).extend(value for value in times if _FASTEST <= value <= _SLOWEST)
        return [_Measured(flow, self._crossed[flow], found) for flow, found in values.items() if found]

    def _delays(self, rounds: Iterable[Sequence[TimedFlow]]) -> list[_Measured]:
        """Delays there, each with the shortest one back in its round (s): a clock set meanwhile lengthens none."""
        values: dict[tuple[Flow, Flow], list[float]] = {}
        for timed in rounds:
            by_flow = {one[:3]: [train.delay_s for train in one.trains] for one in self._known([timed]) if one.trains}
            for there, delays_s in by_flow.items():
                back = self._back(there)
                if back and back in by_flow:
                    home_s = min(by_flow[back])
                    both = (delay_s + home_s for delay_s in delays_s)
                    values.setdefault((there, back), []).extend(v for v in both if 0 <= v <= _LONGEST_S)
        return [
            _Measured(ways, self._crossed[ways[0]] | self._crossed[ways[1]], found)
            for ways, found in values.items()
            if found
        ]

    def _known(self, rounds: Iterable[Sequence[TimedFlow]]) -> Iterator[TimedFlow]:
        return (one for timed in rounds for one in timed if one[:3] in self._crossed)

    def _compare(self, measured: Sequence[_Measured], least: Callable[[float], float]) -> "_Compared | None":
        """Which values are nearer to the worst than to the usual: these are bad, if the worst is `least` beyond it.

        The worst is that of the suspect that makes all longer which cross it. None if there is nothing to compare.
        """
        apart = [one for one in measured if one.crosses.isdisjoint(self._parts)]
        if len(apart) == len(measured) or not apart:
            return None
        usual = statistics.median_low(one.undisturbed for one in apart)
        of_parts: dict[Component, float] = {}
        for one in measured:
            for part in one.crosses & self._parts:
                of_parts[part] = min(one.undisturbed, of_parts.get(part, one.undisturbed))
        worst = max(of_parts.values())
        if worst - usual < least(usual):
            return _Compared([])
        bar = (usual + worst) / 2
        return _Compared(
            [Outcome(one.flow, one.crosses, sum(v > bar for v in one.values), len(one.values)) for one in measured]
        )

    def _weigh(self, compared: "_Compared | None") -> tuple[frozenset[Component], bool]:
        """What is left of the suspects."""
        if not compared:
            return frozenset(), False
        outcomes = compared.outcomes
        if not outcomes:
            return frozenset(), True
        clear = [one for one in outcomes if one.crosses.isdisjoint(self._parts)]
        chance = (sum(one.bad for one in clear) + 1) / (sum(one.packets for one in clear) + 2)
        return Weighing(outcomes, self._parts, max(_SLOW_IN_HEALTH, chance), _TO_BLAME).left()

    def _of_known_sides(self, left: frozenset[Component]) -> frozenset[Component]:
        """Of a NIC by which trains are late the side that was named, and its cable at that side only."""
        for nic, side in self._known_sides.items():
            if Component("nic", nic) in left:
                flows = [flow for flow in self._crossed if nic == flow[side == "rx"]]
                along = frozenset[Component]().union(*(self._crossed[flow] for flow in flows))
                left = (left - {Component("nic", nic)} | {Component("nic", nic, side)}) & along
        return left
