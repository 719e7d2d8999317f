"""Which packets that expire on their way tell dead components apart, and what their answers show. Pure.

A packet with the 5-tuple of data expires at a switch of its path, which answers. If a component drops everything, the
switches before it answer and those behind it do not. So dead links in series are told apart, which no transfer can do.
A switch may be silent for other reasons, so nothing is found to be dead by that alone.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from c4bench.c4d.act.flows import WITNESSES, FlowComponents, fewest
from c4bench.c4d.observe.shared_fabric import PathLinks, switches
from c4bench.model.diagnosis import Component
from c4bench.model.recording import ExpiringProbe

# So many NICs ask the same, and `WITNESSES` must meet silence: a switch may have no answer left for one of them.
_ASKING = 3
_SIDES = ("", "tx", "rx")
# By source NIC and the address of a switch: whether the switch can answer, as far as is known.
CanAnswer = Callable[[str, str], bool]
# What probes have to do with suspects, and whether none of them was answered; None: that cannot be told.
Shown = tuple[FlowComponents, bool | None]


class ExpiringProbes:
    """What probes on these `paths` have to do with `suspects`.

    What an answered probe crosses is alive: its links up to the switch that answers, and its NIC with its cable. The
    answer to any other may also be lost on the way back, by the links in `returns`, or with all packets of this path.
    """

    def __init__(self, suspects: Iterable[Component], paths: PathLinks) -> None:
        self._suspects = frozenset(suspects)
        self._paths = paths
        self._towards: dict[str, set[tuple[str, ...]]] = {}
        for (_, destination, _), hops in self._paths.items():
            self._towards.setdefault(destination, set()).add(hops)
        self._back: dict[tuple[str, int], frozenset[str]] = {}
        self._aliases = _aliases(self._paths) if any(one.kind == "switch" for one in self._suspects) else {}

    def next_probes(
        self, left: frozenset[Component], shown: Iterable[Shown], can_answer: CanAnswer
    ) -> tuple[ExpiringProbe, ...]:
        """The fewest further probes that tell the suspects that are `left` apart, each sent by several NICs."""
        asked = {touched.among(left) for touched, _ in shown}
        kinds = {kind: probes for kind, probes in self._by_kind(left, can_answer).items() if kind not in asked}
        chosen = fewest({probes[0]: kind for kind, probes in kinds.items()}, sorted(left, key=str))
        return tuple(probe for probes in kinds.values() if probes[0] in chosen for probe in probes)

    def outcomes(self, probes: Sequence[ExpiringProbe], answers: Sequence[str | None]) -> list[Shown]:
        """What the `answers` (see `HopsProbed`) show; probes that meet the same suspects are one question."""
        by_kind: dict[FlowComponents, list[bool | None]] = {}
        for probe, answer in zip(probes, answers, strict=True):
            if hops := self._paths.get(probe[:3]):
                bad = not answer if answer in {"", hops[probe.hops - 1]} else None
                by_kind.setdefault(self._touched(probe, hops), []).append(bad)
        return [
            (kind, False if False in bads else bads.count(True) >= WITNESSES or None) for kind, bads in by_kind.items()
        ]

    def _by_kind(self, left: frozenset[Component], can_answer: CanAnswer) -> dict[FlowComponents, list[ExpiringProbe]]:
        """Probes by what they have to do with suspects: of each kind some of different NICs, best with answers left."""
        able: dict[FlowComponents, dict[str, ExpiringProbe]] = {}
        unable: dict[FlowComponents, dict[str, ExpiringProbe]] = {}
        for path, hops in self._paths.items():
            for position, hop in enumerate(hops[:-1]):
                probe = ExpiringProbe(*path, position + 1)
                kind = self._touched(probe, hops).among(left)
                kinds = able if can_answer(path[0], hop) else unable
                kinds.setdefault(kind, {}).setdefault(path[0], probe)
        every = {kind: [*able.get(kind, {}).values(), *unable.get(kind, {}).values()] for kind in [*able, *unable]}
        return {kind: probes[:_ASKING] for kind, probes in every.items()}

    def _touched(self, probe: ExpiringProbe, hops: tuple[str, ...]) -> FlowComponents:
        source, reached = probe.source, hops[: probe.hops]
        cable = {path[-1] for path in self._towards.get(source, ())}
        crosses = {Component("nic", source, side) for side in _SIDES}
        crosses |= {Component("link", hop) for hop in (*reached, *(cable if len(cable) == 1 else ()))}
        crosses |= {Component("switch", alias) for hop in reached for alias in self._aliases.get(hop, (hop,))}
        returns = {Component("link", hop) for hop in self._links_back(source, probe.hops) | cable} - crosses
        returns.add(Component("path", f"{source}>{probe.destination}"))
        return FlowComponents(frozenset(crosses), frozenset(returns)).among(self._suspects)

    def _links_back(self, source: str, hops: int) -> frozenset[str]:
        """The links between switches by which an answer from so many hops away may return to a NIC."""
        if (source, hops) not in self._back:
            towards = self._towards.get(source, ())
            links = (hop for path in towards for hop in path[max(1, len(path) - hops) : -1])
            self._back[source, hops] = frozenset(links)
        return self._back[source, hops]


def _aliases(paths: PathLinks) -> dict[str, frozenset[str]]:
    """All addresses of the switch that has an address."""
    before: dict[str, set[str]] = {}
    for hops in paths.values():
        for near, hop in pairwise(hops):
            before.setdefault(hop, set()).add(near)
    return {address: switch.addresses for switch in switches(before) for address in switch.addresses}
