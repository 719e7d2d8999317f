"""Which suspects the traffic cannot tell apart, and the fewest probe flows that can.

A probe between two NICs fails, or is slow, if it crosses the faulty component, and may if its acknowledgements do. So a
set of probes tells two suspects apart if one of its flows crosses one of them and has nothing to do with the other:
NIC, link and switch port are triangulated with a third NIC that shares neither suspect, as R2CCL (arXiv 2512.25059)
does with probe QPs.
"""

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple, TypeVar

from c4bench.attribution.weigh import crossed
from c4bench.c4d.diagnosis import inside_host
from c4bench.c4d.observe.job_view import JobView
from c4bench.c4d.observe.shared_fabric import PathLinks
from c4bench.model.diagnosis import Component, ProbeFlow
from c4bench.model.fabric import is_gpu

Flow = tuple[str, str, int]  # source NIC, destination NIC, source port; 0 leaves the path to the fabric
Pair = tuple[str, str]
Asked = TypeVar("Asked", bound=Hashable)

# All probes of a request together take at most this share of a NIC's rate.
POLITE_SHARE = 0.01
# A probe lasts long enough (s) to show a difference of 5 %.
_PROBE_S = 0.5
# This many NICs are enough to find one that shares neither suspect.
_THIRD_PARTIES = 32
# So many flows of numbered packets or trains cross every suspect, and so many none.
WITNESSES = 2
# Kinds of components that a probe can cross.
_CARRIERS = ("nic", "path", "link", "switch")


class FlowComponents(NamedTuple):
    """The components that a flow's data cross, and those that only its acknowledgements do."""

    crosses: frozenset[Component]
    returns: frozenset[Component]

    def among(self, suspects: frozenset[Component]) -> "FlowComponents":
        """Only these components."""
        return FlowComponents(self.crosses & suspects, self.returns & suspects)

    def splits(self, one: Component, other: Component) -> bool:
        """Whether such a flow is bad for one of two suspects and good for the other."""
        sure = (one in self.crosses) != (other in self.crosses)
        return sure and not self.returns & {one, other}


class ProbePaths:
    """The components that flows cross.

    `paths` are the links of flows as far as they are known; without them only NICs and paths are told apart. `used` are
    the source ports by which pairs send: what is said of a pair's path is said of these.
    """

    def __init__(self, paths: PathLinks | None = None, used: Mapping[Pair, Collection[int]] | None = None) -> None:
        self._paths = paths or {}
        self._used = used or {}
        self._known: dict[Pair, list[int]] = {}
        for source, destination, port in self._paths:
            self._known.setdefault((source, destination), []).append(port)

    def flows(self, pair: Pair) -> list[Flow]:
        """The candidate flows from one NIC to another."""
        ports = self._used.get(pair) or self._known.get(pair) or (0,)
        return [(*pair, port) for port in sorted(ports)]

    def touched(self, flow: Flow) -> FlowComponents:
        """Its source's transmitter, its destination's receiver, both NICs, its path, its links; the NICs' other sides.

        And the switches that its links lead to, by the same addresses.

        The links that acknowledgements cross are not known; they are too small for a link's rate to matter.
        """
        source, destination, port = flow
        forward = {Component("nic", source, "tx"), Component("nic", destination, "rx")}
        forward |= {Component("nic", source), Component("nic", destination)}
        if port in self._used.get((source, destination), (port,)):
            forward.add(Component("path", f"{source}>{destination}"))
        forward |= {Component(kind, hop) for hop in self._paths.get(flow, ()) for kind in ("link", "switch")}
        back = {Component("nic", source, "rx"), Component("nic", destination, "tx")}
        return FlowComponents(frozenset(forward), frozenset(back))


def deciding_probes(job: JobView, suspects: Collection[Component]) -> tuple[ProbeFlow, ...]:
    """What would tell suspects apart; NICs are as fast as the best of the job's connections has been.

    Nothing can be sent from GPU to GPU to find out.
    """
    carriers = [suspect for suspect in suspects if suspect.kind in _CARRIERS]
    if len(carriers) < 2 or any(map(inside_host, carriers)):
        return ()
    used: dict[Pair, set[int]] = {}
    conns = [view.record for view in job.conns.values() if not is_gpu(view.record.source)]
    for conn in conns:
        used.setdefault((conn.source, conn.destination), set()).add(conn.source_port)
    rates = [8 * conn.size_bytes / conn.shared_s for conn in conns if conn.shared_s > 0]
    nics = {nic for pair in used for nic in pair}
    return plan_probes(carriers, nics, ProbePaths(job.paths, used), max(rates, default=0.0))


def plan_probes(
    suspects: Collection[Component], nics: Iterable[str], paths: ProbePaths, rate_bps: float
) -> tuple[ProbeFlow, ...]:
    """The fewest flows, chosen greedily, that tell `suspects` apart as far as any flow between `nics` can.

    All flows together take `rate_bps` (of one NIC) times 1 %.
    """
    wanted = sorted(set(suspects), key=str)
    flows = _useful(wanted, nics, paths)
    chosen = fewest(flows, wanted)
    if chosen and any(all(suspect in flows[flow].crosses for flow in chosen) for suspect in wanted):
        chosen += _apart(flows)
    each_bps = rate_bps * POLITE_SHARE / max(1, len(chosen))
    return tuple(_probe(flow, flows[flow], each_bps) for flow in chosen)


def fewest(flows: Mapping[Asked, FlowComponents], suspects: Sequence[Component]) -> list[Asked]:
    """The fewest flows that tell suspects apart.

    Greedy choice of the flow that splits most pairs needs no more than 1 + ln(pairs) times the optimum (set cover).
    """
    together = set(combinations(suspects, 2))
    chosen: list[Asked] = []
    while together and flows:
        best = max(flows, key=lambda flow: (sum(flows[flow].splits(*pair) for pair in together), flow))
        split = {pair for pair in together if flows[best].splits(*pair)}
        if not split:
            break
        chosen.append(best)
        together -= split
    return chosen


def telling_flows(parts: Collection[Component], paths: PathLinks) -> tuple[Flow, ...]:
    """The fewest flows that tell `parts` apart, and more, so that some cross each of them, and some none.

    Of flows that tell as much, the first.
    """
    suspects = frozenset(parts)
    kinds: dict[FlowComponents, list[Flow]] = {}
    for path, hops in paths.items():
        of_kind = kinds.setdefault(FlowComponents(crossed(path[:2], hops) & suspects, frozenset()), [])
        if len(of_kind) < WITNESSES and all(path[0] != other[0] for other in of_kind):
            of_kind.append(path)
    first = {flows[0]: kind for kind, flows in kinds.items()}
    in_order = sorted(suspects, key=str)
    chosen = fewest(first, in_order)
    chosen += [flow for flow, kind in first.items() if not kind.crosses]
    wanted = dict.fromkeys(flow for one in chosen for flow in kinds[first[one]])
    for part in in_order:
        crossing = [flow for kind, flows in kinds.items() if part in kind.crosses for flow in flows]
        missing = WITNESSES - sum(flow in wanted for flow in crossing)
        wanted.update(dict.fromkeys([flow for flow in crossing if flow not in wanted][: max(0, missing)]))
    return tuple(wanted)


def _probe(flow: Flow, touched: FlowComponents, rate_bps: float) -> ProbeFlow:
    crosses, returns = (tuple(sorted(part, key=str)) for part in touched)
    return ProbeFlow(*flow, rate_bps, _PROBE_S, crosses, returns)


def probe_outcomes(shares: Sequence[float], times: float) -> tuple[bool | None, ...]:
    """Whether each probe was bad, by the share of its NICs' rate that it came to (0 if it failed); None: cannot tell.

    What is sought makes transfers `times` as long. A probe is bad if it is nearer to that than to the best of all, and
    no outcome is known while even the best shares its path with so much else that it looks no better.
    """
    best, bar = max(shares, default=0.0), 1 / math.sqrt(times)
    return tuple(share < bar * best if best > bar else None for share in shares)


def remaining_suspects(
    suspects: Iterable[Component], probes: Iterable[ProbeFlow | FlowComponents], bad: Iterable[bool | None]
) -> frozenset[Component]:
    """The suspects that agree with what each probe showed; None where one had no answer, which refutes nobody.

    One that was bad may be so by its acknowledgements; one that was not clears what its data cross. Empty when no
    single suspect explains all.
    """
    answered = [(probe, shown) for probe, shown in zip(probes, bad, strict=True) if shown is not None]
    crossed_by = [{*probe.crosses, *(probe.returns if shown else ())} for probe, shown in answered]
    return frozenset(
        one
        for one in suspects
        if all((one in parts) == shown for parts, (_, shown) in zip(crossed_by, answered, strict=True))
    )


def _useful(suspects: Sequence[Component], nics: Iterable[str], paths: ProbePaths) -> dict[Flow, FlowComponents]:
    """What flows have to do with suspects: one flow of each kind, the first by name, since others tell the same."""
    wanted = frozenset(suspects)
    involved = sorted({nic for suspect in suspects for nic in _nics_of(suspect)})
    others = [nic for nic in sorted(nics) if nic not in involved][:_THIRD_PARTIES]
    kinds: dict[FlowComponents, Flow] = {}
    for flow in (flow for pair in _pairs(involved, others) for flow in paths.flows(pair)):
        kinds.setdefault(paths.touched(flow).among(wanted), flow)
    return {flow: touched for touched, flow in kinds.items()}


def _apart(flows: Mapping[Flow, FlowComponents]) -> list[Flow]:
    """A flow that touches no suspect, as a reference for the others; empty if there is none."""
    return [flow for flow, touched in flows.items() if not any(touched)][:1]


def _pairs(involved: Sequence[str], others: Sequence[str]) -> list[Pair]:
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
