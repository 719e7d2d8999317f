"""Which component loses or reorders packets, by numbered packets on known paths, which tell the direction. Pure.

If a component is to blame, the packets that cross it are lost with one unknown probability, and all others hardly ever.
Bayes' rule weighs the suspects by that: a few lost packets are enough where all of them crossed the same component.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from c4bench.c4d.ingest.known_paths import PathLinks
from c4bench.c4d.probing.probes import FlowComponents, fewest
from c4bench.model.diagnosis import Component
from c4bench.model.recording import Delivery

Flow = tuple[str, str, int]

# The probability that a healthy path loses or reorders a packet: congestion may drop one.
_HEALTHY = 1e-4
# How much likelier a suspect is that is preferred to another, or to no fault at all (logarithm).
_FAR = math.log(1000.0)
# How much less likely a fault of the path between two NICs alone is before (logarithm): no campaign has one.
_UNLIKELY = _FAR
# So many flows cross every suspect, and so many none.
_WITNESSES = 2


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
        self._parts = frozenset(part for one in suspects for part in _sides(one))

    def flows(self) -> tuple[Flow, ...]:
        """The fewest flows that tell the suspects apart, and more, so that some cross each of them, and some none."""
        kinds: dict[FlowComponents, list[Flow]] = {}
        for path, hops in sorted(self._paths.items()):
            of_kind = kinds.setdefault(FlowComponents(_crossed(path, hops) & self._parts, frozenset()), [])
            if len(of_kind) < _WITNESSES and all(path[0] != other[0] for other in of_kind):
                of_kind.append(path)
        first = {flows[0]: kind for kind, flows in kinds.items()}
        parts = sorted(self._parts, key=str)
        chosen, _ = fewest(first, parts)
        chosen += [flow for flow, kind in first.items() if not kind.crosses]
        wanted = dict.fromkeys(flow for one in chosen for flow in kinds[first[one]])
        for part in parts:
            crossing = [flow for kind, flows in kinds.items() if part in kind.crosses for flow in flows]
            missing = _WITNESSES - sum(flow in wanted for flow in crossing)
            wanted.update(dict.fromkeys([flow for flow in crossing if flow not in wanted][: max(0, missing)]))
        return tuple(wanted)

    def left(self, deliveries: Iterable[Delivery]) -> tuple[frozenset[Component], bool]:
        """The suspects, with their sides, that lost or overtaken packets leave, and whether more may tell more.

        Empty while nothing is beyond chance, or if what explains it best is no suspect.
        """
        kept = [one for one in deliveries if one[:3] in self._paths]
        every = [self._weigh(kept, manner) for manner in _MANNERS]
        weighed = max(every, key=self._gain)
        own = {part: one for part, one in weighed.items() if part in self._parts and one.gain > _FAR}
        if not own:
            return frozenset(), True
        totals = {part: one.gain + _beside(one, weighed.values()).gain for part, one in weighed.items()}
        most = max(totals[part] for part in own)
        best = next(one for part, one in own.items() if totals[part] == most)
        alike = {part for part, one in weighed.items() if totals[part] > most - _FAR and one.flows & best.flows}
        if any(totals[part] > most + _FAR for part in alike):
            return frozenset(), False
        second = _beside(best, weighed.values())
        also = {part for part, one in own.items() if _beside_as_well(one, best, second)}
        left = (alike & own.keys()) | also
        whole = [part for part in left if part.kind == "nic" and not part.side]
        left |= {link for nic in whole for link in _cable(nic, own)}
        left -= {side for nic in whole for side in _sides(nic) if side.side}
        return frozenset(left), any(weighed[part].flows != best.flows for part in alike & own.keys())

    def dead(self, parts: Collection[Component], deliveries: Iterable[Delivery]) -> bool:
        """Whether nothing that crosses any of these arrived."""
        kept = (one for one in deliveries if one[:3] in self._paths)
        crossing = [one for one in kept if not _crossed(one[:3], self._paths[one[:3]]).isdisjoint(parts)]
        return not any(one.data or one.acks for one in crossing)

    def _gain(self, weighed: Mapping[Component, "_Weighed"]) -> float:
        """The evidence against the worst suspect."""
        return max((one.gain for part, one in weighed.items() if part in self._parts), default=0.0)

    def _weigh(
        self, deliveries: Iterable[Delivery], manner: Callable[[Delivery], _Counted]
    ) -> Mapping[Component, "_Weighed"]:
        """The evidence against everything that the packets crossed; of paths only against suspects."""
        crossing: dict[Component, list[tuple[Flow, _Counted]]] = {}
        for one in deliveries:
            for part in _crossed(one[:3], self._paths[one[:3]]):
                if part.kind != "path" or part in self._parts:
                    crossing.setdefault(part, []).append((one[:3], manner(one)))
        return {part: _weighed(flows, _UNLIKELY if part.kind == "path" else 0.0) for part, flows in crossing.items()}


class _Weighed(NamedTuple):
    """How many times as likely bad packets are if a component is to blame, than if none is (logarithm); its flows."""

    gain: float
    flows: frozenset[Flow]


def _weighed(counted: Collection[tuple[Flow, _Counted]], unlikely: float) -> _Weighed:
    bad = sum(count.bad for _, count in counted)
    good = sum(count.packets for _, count in counted) - bad
    # Any probability of a loss is as likely as any other before: the mean over all of them is a Beta function.
    if_to_blame = math.lgamma(bad + 1) + math.lgamma(good + 1) - math.lgamma(bad + good + 2)
    otherwise = bad * math.log(_HEALTHY) + good * math.log1p(-_HEALTHY)
    return _Weighed(if_to_blame - otherwise - unlikely, frozenset(flow for flow, _ in counted))


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
    sides = [one.flows for part, one in weighed.items() if part in _sides(nic) and part.side]
    return [part for part, one in weighed.items() if part.kind == "link" and one.flows in sides]


def _sides(one: Component) -> tuple[Component, ...]:
    """A NIC with either side and both, since a side that was named may be the wrong one; any other as it is."""
    return tuple(Component("nic", one.name, side) for side in ("", "tx", "rx")) if one.kind == "nic" else (one,)


def _crossed(flow: Flow, hops: tuple[str, ...]) -> frozenset[Component]:
    source, destination, _ = flow
    ends = {Component("nic", source), Component("nic", source, "tx")}
    ends |= {Component("nic", destination), Component("nic", destination, "rx")}
    links = {Component("link", hop) for hop in hops}
    return frozenset({*ends, *links, Component("path", f"{source}>{destination}")})
