"""The state of each component that is slow or lossy: alarmed, asking, named, healing; without a case all is quiet."""

from collections.abc import Collection, Iterable
from enum import Enum

import msgspec

from c4bench.c4d.thresholds import NAME_SPANS
from c4bench.model.diagnosis import Component


class State(Enum):
    """What is done about a component.

    `alarmed`: it has been to blame for a while; `asking`: it is held until probes have told; `named`: there is a
    finding about it; `healing`: nothing has been to blame since, for fewer spans than it took to name it.
    """

    ALARMED = 1
    ASKING = 2
    NAMED = 3
    HEALING = 4


class _Case(msgspec.Struct):
    """A component's state, when its alarm was raised (s, master's clock), and for how many spans nothing was wrong."""

    state: State
    alarmed_s: float
    clean_spans: int = 0


class Cases:
    """The cases of one job, span by span."""

    def __init__(self) -> None:
        self._cases: dict[Component, _Case] = {}
        self._in_last_sweep: set[Component] = set()

    @property
    def standing(self) -> set[Component]:
        """The components that are named and have not healed."""
        return {one for one, case in self._cases.items() if case.state in {State.NAMED, State.HEALING}}

    def of_kind(self, kind: str) -> set[str]:
        """The names of those of a kind, NICs by whichever side."""
        return {component.name for component in self.standing if component.kind == kind}

    def knows(self, component: Component) -> bool:
        """Whether there is a finding about a component, or a NIC's other side, or probes are asked about it."""
        asked = {one for one, case in self._cases.items() if case.state is not State.ALARMED}
        return any((one.kind, one.name) == (component.kind, component.name) for one in asked | self._in_last_sweep)

    def alarm(self, lasting: Collection[Component], now_s: float) -> None:
        """Raise the alarm about what has been to blame for a while; take it back about what is no more."""
        lapsed = [one for one, case in self._cases.items() if case.state is State.ALARMED and one not in lasting]
        for component in lapsed:
            del self._cases[component]
        for component in lasting:
            self._cases.setdefault(component, _Case(State.ALARMED, now_s))

    def alarmed_s(self, component: Component, now_s: float) -> float:
        """When the first alarm that still stands was raised; now for a component without one."""
        case = self._cases.get(component)
        return case.alarmed_s if case else now_s

    def ask(self, component: Component, now_s: float) -> None:
        """Hold a component until probes have told."""
        self._cases.setdefault(component, _Case(State.ALARMED, now_s)).state = State.ASKING

    def name(self, components: Iterable[Component], now_s: float) -> None:
        """Note components as named now."""
        for component in components:
            self._cases[component] = _Case(State.NAMED, self.alarmed_s(component, now_s))

    def drop(self, component: Component) -> None:
        """Forget a component about which nothing is wrong, by whichever side."""
        self._cases = {one: case for one, case in self._cases.items() if one.name != component.name}

    def heal(self, *, clean: bool) -> None:
        """Add a span, which had nothing to blame if it was `clean`."""
        for component, case in list(self._cases.items()):
            if case.state in {State.NAMED, State.HEALING}:
                case.clean_spans = case.clean_spans + 1 if clean else 0
                case.state = State.HEALING if clean else State.NAMED
                if case.clean_spans >= NAME_SPANS:
                    del self._cases[component]

    def new_in_sweep(self, components: Iterable[Component]) -> set[Component]:
        """Note components that a sweep shows to be slow, until the next sweep; return those not known before."""
        slow = set(components)
        fresh = {component for component in slow if not self.knows(component)}
        self._in_last_sweep = slow
        return fresh
