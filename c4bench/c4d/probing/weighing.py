"""Which component is to blame for packets that fared badly, by what the packets crossed. Pure.

If a component is to blame, what crosses it fares badly with one probability, and everything else hardly ever.
Bayes' rule weighs all components by that: a few bad packets are enough where all of them crossed the same component.
"""

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from c4bench.c4d.ingest.known_paths import PathLinks
from c4bench.c4d.probing.probes import FlowComponents, fewest
from c4bench.model.diagnosis import Component

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
