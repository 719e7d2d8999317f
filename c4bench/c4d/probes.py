"""Which suspects the traffic cannot tell apart, and the fewest probe flows that can.

A probe between two NICs fails, or is slow, exactly if it crosses the faulty component. So a set of probes tells two
suspects apart if one of its flows crosses one of them and not the other: NIC, link and switch port are triangulated
with a third NIC that shares neither suspect (R2CCL, arXiv 2512.25059, does so with probe QPs).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from c4bench.c4d.localise import Cell
from c4bench.model.diagnosis import Component, ProbeFlow

Crossing = Callable[[Cell], frozenset[Component]]

# Probes take at most this share of a NIC, all of a request together, for as long as tells 5 % apart.
_POLITE_SHARE = 0.01
_PROBE_S = 0.2
# So many NICs are enough to find one that shares neither suspect.
_THIRD_PARTIES = 32


class ProbePlan(msgspec.Struct, frozen=True):
    """`flows` to send; groups of suspects that no flow at all can tell apart; the suspects each flow crosses."""

    flows: tuple[ProbeFlow, ...]
    inseparable: tuple[frozenset[Component], ...]
    crossed: tuple[frozenset[Component], ...]

    def remaining(self, failed: Mapping[Cell, bool]) -> frozenset[Component]:
        """The suspects that agree with what the probes showed: by (source, destination), whether each was bad.

        Empty when no single suspect explains it. A flow without an answer refutes nobody.
        """
        suspects = frozenset().union(*self.inseparable) if self.inseparable else frozenset[Component]()
        for flow, crossed in zip(self.flows, self.crossed, strict=True):
            bad = failed.get((flow.source, flow.destination))
            if bad is not None:
                suspects = suspects & crossed if bad else suspects - crossed
        return suspects


def crossing(links: Mapping[Cell, Sequence[str]] | None = None) -> Crossing:
    """What a flow crosses: its source's transmitter, its destination's receiver, both NICs, its path, and its links.

    `links` are the hops of each pair of NICs (the far addresses, as an atlas has them); without them only NICs and
    paths are told apart.
    """

    def crosses(flow: Cell) -> frozenset[Component]:
        source, destination = flow
        ends = {Component("nic", source, "tx"), Component("nic", destination, "rx")}
        ends |= {Component("nic", source), Component("nic", destination)}
        hops = (links or {}).get(flow, ())
        return frozenset(
            ends | {Component("path", f"{source}>{destination}")} | {Component("link", hop) for hop in hops}
        )

    return crosses


def plan_probes(
    suspects: Collection[Component],
    nics: Iterable[str],
    crosses: Crossing,
    rate_bps: float,
    *,
    avoid: Collection[str] = (),
) -> ProbePlan:
    """The fewest flows, chosen greedily, that tell `suspects` apart as far as any flow between `nics` can.

    All flows together take `rate_bps` (of one NIC) times 1 %. `avoid` are NICs that are not to be third parties, like
    those with findings of their own. Greedy choice of the flow that splits most pairs needs no more than
    1 + ln(pairs) times the optimum (set cover).
    """
    wanted = sorted(set(suspects), key=str)
    flows = _useful(wanted, [nic for nic in nics if nic not in avoid], crosses)
    together = {(a, b) for i, a in enumerate(wanted) for b in wanted[i + 1 :]}
    chosen: list[Cell] = []
    while together and flows:
        best = max(flows, key=lambda flow: (_splits(flows[flow], together), flow))
        split = {pair for pair in together if (pair[0] in flows[best]) != (pair[1] in flows[best])}
        if not split:
            break
        chosen.append(best)
        together -= split
    each_bps = rate_bps * _POLITE_SHARE / max(1, len(chosen))
    return ProbePlan(
        tuple(ProbeFlow(source, destination, each_bps, _PROBE_S) for source, destination in chosen),
        _groups(wanted, together),
        tuple(flows[flow] for flow in chosen),
    )


def _splits(crossed: frozenset[Component], pairs: Iterable[tuple[Component, Component]]) -> int:
    return sum((a in crossed) != (b in crossed) for a, b in pairs)


def _useful(suspects: Sequence[Component], nics: Sequence[str], crosses: Crossing) -> dict[Cell, frozenset[Component]]:
    """Flows by the suspects they cross: one of each kind, the first by name, since others tell the same."""
    wanted = frozenset(suspects)
    involved = sorted({nic for suspect in suspects for nic in _nics_of(suspect)})
    others = [nic for nic in sorted(nics) if nic not in involved][:_THIRD_PARTIES]
    kinds: dict[frozenset[Component], Cell] = {}
    for source, destination in _pairs(involved, others):
        kinds.setdefault(crosses((source, destination)) & wanted, (source, destination))
    return {flow: crossed for crossed, flow in kinds.items() if crossed}


def _pairs(involved: Sequence[str], others: Sequence[str]) -> list[Cell]:
    """Flows between hosts; first those with one end at a host that no suspect is on: they cross fewest suspects."""
    suspected = {_host(nic) for nic in involved}
    ends = [*involved, *others]
    flows = [(source, destination) for source in ends for destination in ends if _host(source) != _host(destination)]
    return sorted(flows, key=lambda flow: len({_host(nic) for nic in flow} & suspected) != 1)


def _host(nic: str) -> str:
    return nic.partition("/")[0]


def _nics_of(suspect: Component) -> tuple[str, ...]:
    if suspect.kind == "nic":
        return (suspect.name,)
    return tuple(suspect.name.split(">")) if suspect.kind == "path" else ()


def _groups(
    suspects: Sequence[Component], together: Collection[tuple[Component, Component]]
) -> tuple[frozenset[Component], ...]:
    """Suspects that stay together, each in exactly one group; those told apart from all others are alone."""
    groups: list[set[Component]] = []
    for suspect in suspects:
        home = next((g for g in groups if all((other, suspect) in together for other in g)), None)
        if home is None:
            groups.append({suspect})
        else:
            home.add(suspect)
    return tuple(frozenset(group) for group in groups)
