"""What packets of our own show of suspects: numbered ones that are lost, trains that are slow, ones that expire. Pure.

Each kind becomes observations of the flows on which it was sent, which `attribution.weigh` weighs.

How far a train is spread is seen by one clock, so it tells the direction. How late it is depends on two: the shortest
delay on the way back is added, which cancels how far they differ. That says by which NICs and links packets are late,
but not by which side of a NIC: C4D knows that from the past of the job's own delays.
"""

import statistics
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from c4bench.attribution.weigh import Observation, Posterior, Rates, crossed, likeliest, sides
from c4bench.c4d.act.flows import Flow, telling_flows
from c4bench.c4d.observe.shared_fabric import PathLinks
from c4bench.model.diagnosis import Component
from c4bench.model.recording import Delivery, TimedFlow


class Left(NamedTuple):
    """The suspects that answers leave, with their sides, and whether more packets may tell more.

    None are left while nothing is beyond chance, or if what explains it best is no suspect.
    """

    suspects: frozenset[Component]
    more: bool


def left_by(
    observations: Iterable[Observation], parts: frozenset[Component], named: Collection[Component] = ()
) -> Left:
    """What observations leave of the suspects' `parts`, beside what other findings have `named`."""
    every = list(_of_suspected_paths(observations, parts))
    posterior = likeliest(every)
    if posterior is None:
        return Left(frozenset(), more=True)
    alike = frozenset(row.component for row in (*posterior.rows, *posterior.cables))
    if not (alike - parts).isdisjoint(named):
        return left_by([one for one in every if one.flow not in posterior.flows], parts, named)
    own = alike & parts
    return Left(own, bool(own) and _apart(posterior, own))


def _of_suspected_paths(observations: Iterable[Observation], parts: frozenset[Component]) -> Iterator[Observation]:
    """A path between two NICs is to blame only if it is a suspect."""
    for one in observations:
        yield one._replace(crosses=frozenset(part for part in one.crosses if part.kind != "path" or part in parts))


def _apart(posterior: Posterior, own: Collection[Component]) -> bool:
    """Whether other packets than those that fared badly may tell suspects apart."""
    rows = [row for row in posterior.rows if row.component in own and row not in posterior.cables]
    return any(row.flows != rows[0].flows for row in rows)


# The share of packets that a healthy path loses or reorders: congestion may drop one.
_DELIVERED = Rates(1e-4)
# What may happen to packets: they are lost, they are lost if they are acknowledgements, or they are overtaken: how many
# were bad, of how many.
_MANNERS: tuple[Callable[[Delivery], tuple[int, int]], ...] = (
    lambda one: (2 * one.sent - one.data - one.acks, 2 * one.sent),
    lambda one: (one.sent - one.acks, one.sent),
    lambda one: (one.late, one.data + one.acks),
)


class DeliveryProbes:
    """Numbered packets on these `paths`, for `suspects`."""

    def __init__(self, suspects: Collection[Component], paths: PathLinks) -> None:
        self._paths = paths
        self.parts = frozenset(part for one in suspects for part in sides(one))

    def flows(self) -> tuple[Flow, ...]:
        """The fewest flows that tell the suspects apart, and more, so that some cross each of them, and some none."""
        return telling_flows(self.parts, self._paths)

    def left(self, deliveries: Iterable[Delivery], named: Collection[Component] = ()) -> Left:
        """What lost or overtaken packets leave of the suspects; `named` as in `left_by`."""
        return left_by(self.observations(deliveries), self.parts, named)

    def observations(self, deliveries: Iterable[Delivery]) -> list[Observation]:
        """How many packets of each flow fared badly, in the manner that says most about a suspect."""
        kept = [one for one in deliveries if one[:3] in self._paths]
        every = [
            [
                Observation(one[:3], crossed(one[:2], self._paths[one[:3]]), bad, of, _DELIVERED)
                for one in kept
                for bad, of in [manner(one)]
            ]
            for manner in _MANNERS
        ]
        return max(every, key=self._gain)

    def _gain(self, observations: Iterable[Observation]) -> float:
        posterior = likeliest(_of_suspected_paths(observations, self.parts))
        rows = posterior.rows if posterior else ()
        return max((row.gain for row in rows if row.component in self.parts), default=0.0)

    def dead(self, parts: Collection[Component], deliveries: Iterable[Delivery]) -> bool:
        """Whether nothing that crosses any of these arrived."""
        kept = (one for one in deliveries if one[:3] in self._paths)
        crossing = [one for one in kept if not crossed(one[:2], self._paths[one[:3]]).isdisjoint(parts)]
        return not any(one.data or one.acks for one in crossing)


# At least this share of the trains meets the job's own data, or something else that makes them slow.
_SLOW_IN_HEALTH = 0.05
# Nearly all trains that cross a slow component are slow: what waits behind it for other traffic may close up again.
_SLOW_TO_BLAME = 0.95
# What is sought makes trains longer by this share; C4D promises to find a slowdown of a tenth.
_SPREAD = 0.08
# What is sought makes a way there and back as many times longer, and by more than a train takes: more hops do not.
_LATE = 3.0
# A train that is faster than its NICs (times its share of their rate) or slower than anything that still works, or that
# took as long (s), was not timed right.
_FASTEST, _SLOWEST, _LONGEST_S = 0.5, 1e4, 5.0
# So many pairs of NICs are compared with the others.
_COMPARED = 2


class _Measured(NamedTuple):
    """Some times of trains that cross the same components."""

    flow: Hashable
    crosses: frozenset[Component]
    values: Sequence[float]

    @property
    def undisturbed(self) -> float:
        """What other traffic has not made longer: it meets many trains of a busy job, but hardly nine of ten."""
        return sorted(self.values)[len(self.values) // 10]

    def beyond(self, bar: float) -> int:
        """How many are greater."""
        return sum(value > bar for value in self.values)


class TrainProbes:
    """Packet trains on these `paths`, for `suspects`."""

    def __init__(self, suspects: Collection[Component], paths: PathLinks) -> None:
        self._suspects = frozenset(suspects)
        self._parts = frozenset(part for one in suspects for part in sides(one))
        self._crossed = {flow: crossed(flow[:2], hops) for flow, hops in paths.items()}
        self._paths = paths
        self._known_sides = {one.name: one.side for one in suspects if one.kind == "nic" and one.side}
        self._between: dict[tuple[str, str], list[Flow]] = {}
        for flow in self._crossed:
            self._between.setdefault(flow[:2], []).append(flow)

    def flows(self) -> tuple[Flow, ...]:
        """The fewest flows that tell the suspects apart, with ways back, and some ways there and back that cross none.

        Empty if no flow crosses any of the suspects.
        """
        if all(parts.isdisjoint(self._suspects) for parts in self._crossed.values()):
            return ()
        there = telling_flows(self._parts, self._paths)
        ways = [(flow, back) for flow in there if (back := self._back(flow))]
        return tuple(dict.fromkeys([*there, *chain.from_iterable(ways), *self._apart()]))

    def left(self, rounds: Sequence[Sequence[TimedFlow]], named: Collection[Component] = ()) -> Left:
        """What slow trains leave of the suspects; `named` as in `left_by`."""
        by_spread = self._weigh(self._by_spread(rounds), named)
        if by_spread.suspects or not by_spread.more:
            return by_spread
        suspects, more = self._weigh(self._by_delay(rounds), named)
        return Left(self._of_known_sides(suspects), more)

    def refuted(self, rounds: Sequence[Sequence[TimedFlow]]) -> bool:
        """Whether trains that cross suspects are neither spread more nor later than those that cross none."""
        return self._by_spread(rounds) == [] == self._by_delay(rounds)

    def _by_spread(self, rounds: Sequence[Sequence[TimedFlow]]) -> list[Observation] | None:
        return self._compare(self._spreads(rounds), lambda usual: _SPREAD * usual)

    def _by_delay(self, rounds: Sequence[Sequence[TimedFlow]]) -> list[Observation] | None:
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
            if len(found) == _COMPARED:
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

    def _compare(self, measured: Sequence[_Measured], least: Callable[[float], float]) -> list[Observation] | None:
        """How many values of each flow are bad: nearer to the worst than to the usual, if the worst is `least` beyond.

        The worst is that of the suspect that makes all longer which cross it. None if there is nothing to compare;
        empty while none is beyond what is usual.
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
            return []
        bar = (usual + worst) / 2
        trains, bad = sum(len(one.values) for one in apart), sum(one.beyond(bar) for one in apart)
        rates = Rates(max(_SLOW_IN_HEALTH, (bad + 1) / (trains + 2)), _SLOW_TO_BLAME)
        return [Observation(one.flow, one.crosses, one.beyond(bar), len(one.values), rates) for one in measured]

    def _weigh(self, observations: list[Observation] | None, named: Collection[Component]) -> Left:
        """What is left of the suspects."""
        if observations is None:
            return Left(frozenset(), more=False)
        return left_by(observations, self._parts, named)

    def _of_known_sides(self, left: frozenset[Component]) -> frozenset[Component]:
        """Of a NIC by which trains are late the side that was named, and its cable at that side only."""
        for nic, side in self._known_sides.items():
            if Component("nic", nic) in left:
                flows = [flow for flow in self._crossed if nic == flow[side == "rx"]]
                along = frozenset[Component]().union(*(self._crossed[flow] for flow in flows))
                left = (left - {Component("nic", nic)} | {Component("nic", nic, side)}) & along
        return left
