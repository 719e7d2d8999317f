"""Which component is slow, by packet trains on known paths: a narrow one spreads them, or it makes them late.

How far a train is spread is seen by one clock, so it tells the direction. How late it is depends on two: the shortest
delay on the way back is added, which cancels how far they differ. That says by which NICs and links packets are late,
but not by which side of a NIC: C4D knows that from the past of the job's own delays. Pure.
"""

import statistics
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from c4bench.c4d.ingest.known_paths import PathLinks
from c4bench.c4d.probing.probes import FlowComponents, fewest
from c4bench.c4d.probing.weighing import Flow, Outcome, Weighing, crossed, sides, telling_flows
from c4bench.model.diagnosis import Component
from c4bench.model.recording import TimedFlow

# At least this share of the trains meets the job's own data, or something else that makes them slow.
_HEALTHY = 0.05
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
        return Weighing(outcomes, self._parts, max(_HEALTHY, chance), _TO_BLAME).left()

    def _of_known_sides(self, left: frozenset[Component]) -> frozenset[Component]:
        """Of a NIC by which trains are late the side that was named, and its cable at that side only."""
        for nic, side in self._known_sides.items():
            if Component("nic", nic) in left:
                flows = [flow for flow in self._crossed if nic == flow[side == "rx"]]
                along = frozenset[Component]().union(*(self._crossed[flow] for flow in flows))
                left = (left - {Component("nic", nic)} | {Component("nic", nic, side)}) & along
        return left
