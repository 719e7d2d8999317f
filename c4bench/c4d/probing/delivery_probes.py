"""Which component loses or reorders packets, by numbered packets on known paths, which tell the direction. Pure."""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from c4bench.c4d.ingest.known_paths import PathLinks
from c4bench.c4d.probing.weighing import Flow, Outcome, Weighing, crossed, sides, telling_flows
from c4bench.model.diagnosis import Component
from c4bench.model.recording import Delivery

# The probability that a healthy path loses or reorders a packet: congestion may drop one.
_HEALTHY = 1e-4


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
        return Weighing(outcomes, self._parts, _HEALTHY)
