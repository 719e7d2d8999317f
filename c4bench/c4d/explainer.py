"""Why one job's findings were named: asks the stages what they have seen, right after they have named something."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import nlargest

from c4bench.attribution.weigh import Blame, Cell, Links
from c4bench.c4d.confidence import behind
from c4bench.c4d.diagnosis import rank_component
from c4bench.c4d.hang.port_failures import ports_down
from c4bench.c4d.hang.stalls import unanswered, unanswered_credit, waiting_for_credit
from c4bench.c4d.hang.wait_for_graph import WaitForGraph, wait_graph
from c4bench.c4d.ingest.clocks import HostClocks
from c4bench.c4d.ingest.connections import ConnView, cell_of, progress_s
from c4bench.c4d.ingest.job_view import JobView
from c4bench.c4d.ingest.shared_fabric import SharedFabric
from c4bench.c4d.network.evidence import Weight
from c4bench.c4d.network.packet_loss import NO_COUNTS, nic_loss_counts, unanswered_packets
from c4bench.c4d.network.pipeline import NetworkSlownessDetector
from c4bench.c4d.network.span_evidence import SpanEvidence
from c4bench.c4d.probing.doubts import Doubt, Doubts
from c4bench.c4d.straggler.stragglers import StragglerDetector
from c4bench.c4d.thresholds import LEANING, SLIGHT_RATIO, benign_stall_s
from c4bench.model.benign import Benign, BenignSlowdown
from c4bench.model.diagnosis import Cause, Component, Diagnosis, Syndrome
from c4bench.model.fabric import MissingLink
from c4bench.model.hypothesis import Argument, Explanation, Fact, Hypothesis, Standing
from c4bench.model.recording import ProbeSweep

# So many cells are shown one by one, and so many dropped components.
_SHOWN = 3
_DROPPED = 6
_LOSSES = frozenset({Cause.PACKETS_LOST})


def crosses(component: Component, cell: Cell, links: Links) -> bool:
    """Whether what a cell carries crosses a component."""
    match component.kind:
        case "nic":
            ends = {"tx": cell[:1], "rx": cell[1:2]}.get(component.side, cell[:2])
            return component.name in ends
        case "path":
            return component.name == ">".join(cell[:2])
        case "link":
            return component.name in links.get(cell, ())
    return False


def dropped(suspects: Collection[Component], cells: Iterable[Cell], links: Links) -> list[Component]:
    """What bad `cells` cross besides the suspects, a NIC by either side; the components of most cells first."""
    counts: Counter[Component] = Counter()
    for cell in cells:
        counts.update([Component("nic", cell[0], "tx"), Component("nic", cell[1], "rx")])
        counts.update(Component("link", hop) for hop in links.get(cell, ()))
    known = {
        *suspects,
        *(Component("nic", one.name, side) for one in suspects if not one.side for side in ("tx", "rx")),
    }
    return [one for one, _ in counts.most_common() if one not in known][:_DROPPED]


def standing(place: int) -> Standing:
    """That of a finding's suspect by its place."""
    return Standing.ALTERNATIVE if place else Standing.NAMED


def component_hypotheses(
    suspects: Sequence[Component], cause: Cause | None, onset_s: float, seen: SpanEvidence
) -> list[Hypothesis]:
    """The suspects of a finding, then what was dropped though slow or lossy cells cross it."""
    argue = _Lossy(seen) if cause in _LOSSES else _Slow(seen, onset_s)
    links = seen.judged.span.links
    bad = [cell for cell in argue.bad if any(crosses(one, cell, links) for one in suspects)]
    others = dropped(suspects, bad, links)
    standings = [*map(standing, range(len(suspects))), *[Standing.DROPPED] * len(others)]
    found = []
    for one, at in zip([*suspects, *others], standings, strict=True):
        speaks_for, speaks_against = argue.about(one)
        found.append(Hypothesis(one, at, speaks_for, (*speaks_against, *elsewhere(one, bad, links))))
    return found


def elsewhere(one: Component, bad: Collection[Cell], links: Links) -> tuple[Argument, ...]:
    """How many of the bad cells do not cross a component, if any."""
    cells = sum(not crosses(one, cell, links) for cell in bad)
    return (Argument(Fact.CELLS_ELSEWHERE, figures={"cells": float(cells)}),) if cells else ()


Arguments = tuple[tuple[Argument, ...], tuple[Argument, ...]]  # for, and against


class _Slow:
    """Arguments about what makes cells slow since `onset_s`; `bad` are cells that lean towards slow."""

    def __init__(self, seen: SpanEvidence, onset_s: float) -> None:
        self._seen, self._onset_s = seen, onset_s
        self._links = seen.judged.span.links
        weights = seen.judged.weights.cells
        leaning = {cell: weight for cell, weight in weights.items() if weight.of_enough > LEANING}
        self.bad = leaning | {
            cell: weights.get(cell, Weight(0.0, seen.judged.departures.get(cell, 0.0), onset_s, 0))
            for blame in seen.judged.blames
            for cell in blame.cells
        }

    def about(self, one: Component) -> Arguments:
        slow = sorted((cell for cell in self.bad if self._crosses(one, cell)), key=lambda cell: -self.bad[cell].least)
        speaks_for = [_weighed(Fact.CELL_SLOW, cell, self.bad[cell]) for cell in slow[:_SHOWN]]
        if rest := slow[_SHOWN:]:
            longest = math.exp(self.bad[rest[0]].least)
            speaks_for.append(Argument(Fact.CELLS_SLOW, figures={"cells": len(rest), "times_as_long": longest}))
        if one in self._seen.slices and slow:
            speaks_for.append(Argument(Fact.SLOW_AS_A_WHOLE, (str(one),), {"enough": self._seen.slices[one]}))
        well = [
            value for cell, value in self._seen.judged.departures.items()
            if cell not in self.bad and self._crosses(one, cell)
        ]  # fmt: skip
        figures = {"cells": len(well), "times_as_long": math.exp(max(well, default=0.0))}
        speaks_against = [Argument(Fact.CELLS_WELL, figures=figures)] if well else []
        if one.kind == "nic":
            self._add_nic(one, speaks_for, speaks_against)
        return tuple(speaks_for), tuple(speaks_against)

    def _add_nic(self, one: Component, speaks_for: list[Argument], speaks_against: list[Argument]) -> None:
        """How long a NIC is busy, and the delays that tell its sides apart."""
        if weight := self._seen.utilisation.weight(one.name):
            speaks_for.append(_weighed(Fact.NIC_BUSY, (one.name,), weight))
        sent_s, received_s, elsewhere_s = self._seen.one_way.growth(one.name, self._onset_s)
        if side := self._seen.one_way.side(one.name, self._onset_s):
            figures = {"sent_s": sent_s, "received_s": received_s, "elsewhere_s": elsewhere_s}
            (speaks_for if side == one.side else speaks_against).append(
                Argument(Fact.ONE_WAY_DELAYS, (one.name,), figures)
            )

    def _crosses(self, one: Component, cell: Cell) -> bool:
        return crosses(one, cell, self._links)


def _weighed(fact: Fact, about: tuple[str, ...], weight: Weight) -> Argument:
    figures: dict[str, float] = {
        "times_as_long": math.exp(weight.least),
        "spans": weight.spans,
        "enough": weight.of_enough,
    }
    return Argument(fact, about, figures)


class _Lossy:
    """Arguments about what loses packets, by the counts at both ends of cells in the latest spans."""

    def __init__(self, seen: SpanEvidence) -> None:
        self._seen = seen
        self._links = seen.view.links()
        self.bad = Counter(cell for cells, _ in seen.counted for cell in cells)

    def about(self, one: Component) -> Arguments:
        lossy = [cell for cell, _ in self.bad.most_common() if crosses(one, cell, self._links)]
        measured = self._seen.judged.departures
        well = sum(cell not in self.bad and crosses(one, cell, self._links) for cell in measured)
        speaks_against = (Argument(Fact.CELLS_LOSE_NOTHING, figures={"cells": well}),) if well else ()
        return tuple(map(self._counts, lossy[:_SHOWN])), speaks_against

    def _counts(self, cell: Cell) -> Argument:
        every = [(counts.get(cell[0], NO_COUNTS), counts.get(cell[1], NO_COUNTS)) for _, counts in self._seen.counted]
        figures: dict[str, float] = {
            "spans": self.bad[cell],
            "sent_again": sum(sent.retransmits for sent, _ in every),
            "out_of_sequence": sum(came.out_of_sequence for _, came in every),
            "duplicates": sum(came.duplicates for _, came in every),
        }
        return Argument(Fact.PACKETS_LOST, cell, figures)


def missing_hypotheses(suspects: Sequence[Component], missing: Collection[MissingLink]) -> list[Hypothesis]:
    """The suspects for missing links, of which some are missing themselves, and some lead to those that are."""
    by_name = {link.name: link for link in missing}
    found = []
    for place, one in enumerate(suspects):
        link = by_name.get(one.name)
        others = tuple(name for name in by_name if name != one.name)
        facts = [Argument(Fact.MISSED_WITH, others)] if others else []
        if link is not None:
            figures = {"silent": float(link.silent), "since_s": link.heard_s}
            facts.insert(0, Argument(Fact.LINK_MISSING, (link.name,), figures))
        found.append(Hypothesis(one, standing(place), tuple(facts)))
    return found


def benign_hypotheses(component: Component, onset_s: float, seen: SpanEvidence, *, congested: bool) -> list[Hypothesis]:
    """What speaks for and against each benign explanation of cells that are slow since `onset_s`."""
    blame = _blame(component, seen)
    links = seen.judged.span.links
    behind = len(seen.benign.missing_links(blame, onset_s)) if blame.cells else 0
    arrivals, moved = float(seen.benign.arrivals(blame, onset_s)), float(len(seen.benign.moved(blame, onset_s)))
    others = {
        Benign.OTHER_JOB: (arrivals, Argument(Fact.TRAFFIC_ARRIVED, figures={"times": arrivals})),
        Benign.REROUTED: (moved, Argument(Fact.CONNECTIONS_MOVED, figures={"connections": moved})),
        Benign.LINKS_MISSING: (
            behind,
            Argument(Fact.LINKS_MISSING, figures={"links": float(len(seen.missing)), "behind": float(behind)}),
        ),
    }
    at = Standing.NAMED if congested else Standing.DROPPED
    congestion = Hypothesis(Benign.CONGESTION, at, *_congestion(blame, links, seen))
    return [congestion, *(_benign_dropped(what, fact, seen=count > 0) for what, (count, fact) in others.items())]


def _benign_dropped(what: Benign, fact: Argument, *, seen: bool) -> Hypothesis:
    """A benign explanation for which a fact speaks if it was seen at all, and against which otherwise."""
    return Hypothesis(what, Standing.DROPPED, (fact,) if seen else (), () if seen else (fact,))


def _blame(component: Component, seen: SpanEvidence) -> Blame:
    """What was blamed as this component; one without cells if it was not in this span."""
    named = (component.kind, component.name)
    alike = (one for one in seen.judged.blames if (one.component.kind, one.component.name) == named)
    return next(alike, Blame(component, (), 0.0))


def _congestion(blame: Blame, links: Links, seen: SpanEvidence) -> Arguments:
    """Marks at the receivers, and what the links carry that come nearest to their rates."""
    counts = [count for count in seen.congestion.marked(blame).values() if count is not None]
    marks = Argument(Fact.MARKED, figures={"packets": float(sum(counts)), "nics": float(len(counts))})
    carried = seen.congestion.carried(blame, links, seen.judged.departures)
    shares = {link: share for link, share in carried.items() if share is not None}
    facts = [
        Argument(Fact.LINK_FULL, (link,), {"share": shares[link]})
        for link in nlargest(_SHOWN, shares, shares.__getitem__)
    ]
    # Without marks nothing is known of what links carry.
    if sum(counts) and not shares and carried:
        facts = [Argument(Fact.RATES_UNKNOWN, figures={"links": float(len(carried))})]
    full = [fact for fact in facts if fact.figures.get("share", 0.0) >= 1 / SLIGHT_RATIO]
    rest = [fact for fact in facts if fact not in full]
    return ((marks, *full), tuple(rest)) if sum(counts) else (tuple(full), (marks, *rest))


_RANKS_DROPPED = 4


def hang_hypotheses(diagnosis: Diagnosis, job: JobView, clocks: HostClocks) -> list[Hypothesis]:
    """The suspects of a hang, and what else the waiting ranks wait for or send by."""
    case = _Case(diagnosis, job, clocks)
    suspects = diagnosis.suspects
    others = case.others()
    standings = [*map(standing, range(len(suspects))), *[Standing.DROPPED] * len(others)]
    return [Hypothesis(one, at, *case.about(one)) for one, at in zip([*suspects, *others], standings, strict=True)]


class _Case:
    """A job that hangs, or of which a process ended, when that was named."""

    def __init__(self, diagnosis: Diagnosis, job: JobView, clocks: HostClocks) -> None:
        self._diagnosis, self._job, self._clocks = diagnosis, job, clocks
        self._counts = nic_loss_counts(job, clocks, diagnosis.onset_s)
        self._suspects = diagnosis.suspects
        self._graph: WaitForGraph = wait_graph(job)
        data = [*(job.conns[name] for name in self._graph.stuck), *unanswered(job)]
        credit = unanswered_credit(job, self._graph)
        credit += waiting_for_credit(job, clocks, self._graph, diagnosis.onset_s, ())
        # Each connection once, by what did not arrive: credit, or acknowledgements of data that did, came the way back.
        by_ends = {_ends(view): (view, _return_cell(view)) for view in credit}
        by_ends |= {_ends(view): (view, self._not_arrived(view)) for view in data}
        self._stuck = list(by_ends.values())
        self._links = job.links() | job.crossable({cell for _, cell in self._stuck})

    def _not_arrived(self, view: ConnView) -> Cell:
        cell = cell_of(view.record)
        return _return_cell(view) if unanswered_packets(cell, self._counts) else cell

    def others(self) -> list[Component]:
        """Ranks that wait or are awaited as well, their host, and what stalled connections cross besides."""
        suspects = self._suspects
        ranks = {self._rank(one) for one in suspects if one.kind == "rank"}
        awaited = [node for node in self._graph.sinks() if isinstance(node, int)]
        ended = sorted(self._job.exits)
        beside = [rank for rank in dict.fromkeys([*awaited, *ended, *self._ends()]) if rank not in ranks]
        found = [Component("rank", f"{self._job.job}:{rank}") for rank in beside[:_RANKS_DROPPED]]
        hosts = dict.fromkeys(self._job.mapping.host(rank) for rank in ranks)
        found += [Component("host", host) for host in hosts]
        found += [Component("nic", nic) for rank in ranks for nic in self._job.nics(rank)]
        if self._diagnosis.cause in {Cause.CONNECTION_STALLED, Cause.PACKETS_LOST}:
            found += dropped(suspects, self._own(), self._links)
        return [one for one in dict.fromkeys(found) if one not in suspects]

    def _ends(self) -> list[int]:
        """The ranks at the ends of stalled connections."""
        ends = {end for view, _ in self._stuck for end in (self._job.sender(view), self._job.receiver(view))}
        return sorted(ends) if self._diagnosis.cause is Cause.CONNECTION_STALLED else []

    def _own(self) -> list[Cell]:
        """The stalled cells that cross any suspect."""
        cells = (cell for _, cell in self._stuck)
        return [cell for cell in cells if any(crosses(one, cell, self._links) for one in self._suspects)]

    def about(self, one: Component) -> Arguments:
        """What speaks for a component and against it."""
        match one.kind:
            case "rank":
                return self._about_rank(self._rank(one))
            case "host":
                return self._about_host(one.name)
            case "job":
                return self._about_job(), ()
        return self._about_carrier(one)

    def _rank(self, one: Component) -> int:
        return int(one.name.rpartition(":")[2])

    def _about_rank(self, rank: int) -> Arguments:
        speaks_for: list[Argument] = []
        speaks_against: list[Argument] = []
        waiting = self._graph.waiting_for(rank)
        if waiting:
            chain = tuple(f"rank {node}" for node in self._graph.chain_to(rank))
            speaks_for.append(Argument(Fact.WAITED_FOR, chain, {"ranks": float(waiting)}))
        if op := self._graph.pending.get(rank):
            where = (f"rank {rank}", f"{op.kind} #{op.seq} of {op.comm}")
            waits = self._graph.edges.get(rank)
            (speaks_against if waits else speaks_for).append(Argument(Fact.INSIDE, where))
        elif waiting:
            speaks_for.append(Argument(Fact.NOT_ENTERED, (f"rank {rank}",)))
        if record := self._job.process.get(rank):
            runs = record.state == "running"
            (speaks_against if runs else speaks_for).append(Argument(Fact.PROCESS, (f"rank {rank}", record.state)))
        if ended := self._job.exits.get(rank):
            ended_s = ended.seen_s + self._clocks.offset_s(ended.host)
            speaks_for.append(Argument(Fact.ENDED, (f"rank {rank}",), {"ended_s": ended_s}))
        if "stood_still_s" in self._diagnosis.figures and speaks_for:
            speaks_for.append(self._stood_still(self._diagnosis.figures["stood_still_s"]))
        return tuple(speaks_for), tuple(speaks_against)

    def _stood_still(self, stood_still_s: float) -> Argument:
        figures = {"stood_still_s": stood_still_s, "benign_s": benign_stall_s(self._job.period_s())}
        return Argument(Fact.STOOD_STILL, figures=figures)

    def _about_host(self, host: str) -> Arguments:
        ago_s = self._diagnosis.named_s - self._clocks.last_heard_s(host)
        heard = (Argument(Fact.HEARD, (host,), {"ago_s": ago_s}),)
        return (heard, ()) if self._diagnosis.cause is Cause.HOST_SILENT else ((), heard)

    def _about_job(self) -> tuple[Argument, ...]:
        return tuple(
            Argument(Fact.CALLED, (f"ranks {' '.join(map(str, op.ranks[:8]))}", f"{op.profiling_name} of {op.pg_name}"),
                     {"sequence": float(op.collective_seq_id), "size_bytes": float(op.size_bytes)})
            for op in self._diagnosis.operations
        )  # fmt: skip

    def _about_carrier(self, one: Component) -> Arguments:
        """Connections that stalled across a NIC, path or link, lost packets at their ends, ports, and what went on."""
        stuck = [view for view, cell in self._stuck if crosses(one, cell, self._links)]
        speaks_for = [self._stalled(view) for view in stuck[:_SHOWN]]
        speaks_for += [lost for view in stuck[:_SHOWN] if (lost := self._lost(view))]
        since_s = self._diagnosis.onset_s + self._clocks.cadence_s()
        moved = (view for view in self._job.conns.values() if progress_s(self._clocks, view) > since_s)
        carrying = sum(crosses(one, cell_of(view.record), self._links) for view in moved)
        speaks_against = [Argument(Fact.CELLS_CARRY, figures={"cells": float(carrying)})] if carrying else []
        speaks_against += elsewhere(one, self._own(), self._links)
        failure = self._job.first_failure
        if failure and one.kind == "nic" and one.name in self._job.nics(failure.rank):
            speaks_for.append(Argument(Fact.SAID, (f"rank {failure.rank}", failure.reason)))
        fell = ports_down(self._job, self._clocks) if self._diagnosis.cause is Cause.PORT_DOWN else {}
        speaks_for += [Argument(Fact.PORT, (nic, view.fell_to)) for nic, view in list(fell.items())[:_SHOWN]]
        if one.kind == "nic" and one.name not in fell and (device := self._job.devices.get(one.name)):
            speaks_against.append(Argument(Fact.PORT, (one.name, device.state or "unknown")))
        return tuple(speaks_for), tuple(speaks_against)

    def _stalled(self, view: ConnView) -> Argument:
        still_s = self._diagnosis.named_s - progress_s(self._clocks, view)
        ends = (f"rank {self._job.sender(view)}", f"rank {self._job.receiver(view)}")
        figures = {"outstanding": float(view.record.outstanding), "still_s": still_s}
        return Argument(Fact.CONNECTION_STALLED, (*ends, *cell_of(view.record)), figures)

    def _lost(self, view: ConnView) -> Argument | None:
        sent, came = (self._counts.get(nic, NO_COUNTS) for nic in (view.record.source, view.record.destination))
        figures = {
            "sent_again": float(sent.retransmits),
            "out_of_sequence": float(came.out_of_sequence),
            "duplicates": float(came.duplicates),
        }
        return Argument(Fact.PACKETS_LOST, cell_of(view.record), figures) if any(figures.values()) else None


def _return_cell(view: ConnView) -> Cell:
    """The cell of what a connection's receiver sends back, by any path."""
    return view.record.destination, view.record.source


def _ends(view: ConnView) -> tuple[str, int, int, str, str, int]:
    one = view.record
    return one.comm, one.rank, one.peer, one.source, one.destination, one.source_port


def reported_hypotheses(suspects: Sequence[Component], job: JobView) -> list[Hypothesis]:
    """The suspects that ranks reported themselves, with the states of their ports."""
    found = []
    for place, one in enumerate(suspects):
        device = job.devices.get(one.name)
        port = (Argument(Fact.PORT, (one.name, device.state or "unknown")),) if device else ()
        found.append(Hypothesis(one, standing(place), (), port))
    return found


class Explainer:
    """Explains findings of one job from what its stages hold; it judges nothing."""

    def __init__(
        self,
        view: JobView,
        clocks: HostClocks,
        fabric: SharedFabric,
        network: NetworkSlownessDetector,
        stragglers: Mapping[int, StragglerDetector],
        doubts: Doubts,
    ) -> None:
        self._view, self._clocks, self._fabric = view, clocks, fabric
        self._network, self._stragglers, self._doubts = network, stragglers, doubts
        self._sweep: ProbeSweep | None = None
        self._made: list[Explanation] = []

    def ingest_sweep(self, sweep: ProbeSweep) -> None:
        """Keep a sweep, which findings may come from."""
        self._sweep = sweep

    def explain(self, diagnoses: Iterable[Diagnosis], slowdowns: Iterable[BenignSlowdown]) -> None:
        """Explain what has just been found, in the same evaluation."""
        for diagnosis in diagnoses:
            self._made.append(Explanation(tuple(self._hypotheses(diagnosis)), diagnosis, None, *behind(diagnosis)))
        for slowdown in slowdowns:
            self._made.append(Explanation(tuple(self._benign(slowdown)), None, slowdown))

    def poll(self) -> list[Explanation]:
        """The explanations since the last call."""
        made, self._made = self._made, []
        return made

    def _hypotheses(self, diagnosis: Diagnosis) -> list[Hypothesis]:
        suspects = diagnosis.suspects
        if diagnosis.probed and (doubt := self._doubts.behind(suspects)):
            return probed_hypotheses(diagnosis, doubt)
        match diagnosis.cause:
            case Cause.COMPUTE_SLOW:
                return straggler_hypotheses(diagnosis, self._view, self._stragglers)
            case Cause.CONNECTION_LOST:
                return reported_hypotheses(suspects, self._view)
            case Cause.PAUSE_STORM | Cause.LINK_MISSING | Cause.TRANSFER_SLOW | Cause.PACKETS_LOST:
                return self._of_network(diagnosis, suspects)
        return hang_hypotheses(diagnosis, self._view, self._clocks)

    def _of_network(self, diagnosis: Diagnosis, suspects: tuple[Component, ...]) -> list[Hypothesis]:
        if diagnosis.cause is Cause.LINK_MISSING:
            return missing_hypotheses(suspects, self._fabric.missing)
        if diagnosis.cause is Cause.PAUSE_STORM:
            paused = Argument(Fact.PAUSED, (diagnosis.component.name,), {"share": diagnosis.figures["paused_share"]})
            return [Hypothesis(diagnosis.component, Standing.NAMED, (paused,))]
        return self._slow(diagnosis, suspects)

    def _slow(self, diagnosis: Diagnosis, suspects: tuple[Component, ...]) -> list[Hypothesis]:
        """Of a slow or lossy component: from the delay matrix, a sweep, or connections that have stalled over it."""
        if self._sweep and diagnosis.onset_s == self._sweep.at_s:
            return swept_hypotheses(suspects, self._sweep)
        seen = self._network.evidence()
        if seen is None or diagnosis.syndrome is Syndrome.COMMUNICATION_HANG:
            return hang_hypotheses(diagnosis, self._view, self._clocks)
        found = component_hypotheses(suspects, diagnosis.cause, diagnosis.onset_s, seen)
        if diagnosis.cause is Cause.PACKETS_LOST:
            return found
        return found + benign_hypotheses(diagnosis.component, diagnosis.onset_s, seen, congested=False)

    def _benign(self, slowdown: BenignSlowdown) -> list[Hypothesis]:
        seen = self._network.evidence()
        if seen is None:
            return []
        own = component_hypotheses((slowdown.component,), Cause.TRANSFER_SLOW, slowdown.onset_s, seen)
        benign = benign_hypotheses(slowdown.component, slowdown.onset_s, seen, congested=True)
        return [*benign, *map(_dropped, own)]


def _dropped(one: Hypothesis) -> Hypothesis:
    return Hypothesis(one.what, Standing.DROPPED, one.speaks_for, one.speaks_against)


# So many other ranks are shown, the latest.
_STRAGGLERS_SHOWN = 2


def straggler_hypotheses(
    diagnosis: Diagnosis, job: JobView, detectors: Mapping[int, StragglerDetector]
) -> list[Hypothesis]:
    """The late rank, and those that were late next to it in the same operations of the communicator that showed it."""
    ops = int(diagnosis.figures["late_operations"])
    rank = int(diagnosis.component.name.rpartition(":")[2])
    figures = {"share": diagnosis.figures["late_share"], "operations": float(ops)}
    named = Hypothesis(diagnosis.component, Standing.NAMED, (Argument(Fact.LATE, (f"rank {rank}",), figures),))
    beside = sorted(_beside(rank, ops, job, detectors).items(), key=lambda item: -item[1])[:_STRAGGLERS_SHOWN]
    others = (
        Hypothesis(
            rank_component(job.job, other),
            Standing.DROPPED,
            (),
            (Argument(Fact.LATE, (f"rank {other}",), {"share": share, "operations": float(ops)}),),
        )
        for other, share in beside
    )
    return [named, *others]


def _beside(rank: int, ops: int, job: JobView, detectors: Mapping[int, StragglerDetector]) -> dict[int, float]:
    """How late other ranks were, by the communicator in which this rank was latest."""
    best: dict[int, float] = {}
    for number, comm in enumerate(job.numbered):
        if rank not in comm.ranks.values() or len(comm.ranks) not in detectors:
            continue
        shares = detectors[len(comm.ranks)].latest(number, ops)
        late = {comm.ranks[member]: share for member, share in enumerate(shares)}
        if late.get(rank, 0.0) > best.get(rank, 0.0):
            best = late
    return {other: share for other, share in best.items() if other != rank}


# So many answers are shown on either side.
_PROBES_SHOWN = 4


def probed_hypotheses(diagnosis: Diagnosis, doubt: Doubt) -> list[Hypothesis]:
    """What probes have left, and the suspects that they have ended, each with the answers that speak for it or not."""
    left = diagnosis.suspects
    ended = [one for one in doubt.suspects if one not in left]
    answers = list(doubt.answers())
    return [Hypothesis(one, _standing(one, left), *_arguments(one, doubt, answers)) for one in (*left, *ended)]


def _arguments(
    one: Component, doubt: Doubt, answers: Sequence[tuple[frozenset[Component], bool, Argument]]
) -> tuple[tuple[Argument, ...], tuple[Argument, ...]]:
    """The answers that speak for a suspect, and against it; what crosses it and is well comes first."""
    bad = tuple(shown for crosses, is_bad, shown in answers if is_bad and one in crosses)
    well = [shown for crosses, is_bad, shown in answers if not is_bad and one in crosses]
    spared = [_not_across(shown) for crosses, is_bad, shown in answers if is_bad and one not in crosses]
    against = tuple([*well, *spared][:_PROBES_SHOWN])
    named = doubt.finding.component
    if not against and named.side and one != named:
        against = (Argument(Fact.KNOWN_SIDE, (str(named),)),)
    return bad[:_PROBES_SHOWN], against


def _not_across(shown: Argument) -> Argument:
    return Argument(shown.fact, shown.about, shown.figures | {"crosses": 0.0})


def _standing(one: Component, left: Sequence[Component]) -> Standing:
    if one not in left:
        return Standing.DROPPED
    return Standing.ALTERNATIVE if one != left[0] else Standing.NAMED


def swept_hypotheses(suspects: Collection[Component], sweep: ProbeSweep) -> list[Hypothesis]:
    """NICs that a sweep shows to be slow, by the shares of their rate that its transfers came to."""
    found = []
    for one in suspects:
        ends = {"tx": (0,), "rx": (1,)}.get(one.side, (0, 1))
        shown = tuple(
            Argument(Fact.SWEPT, (probe.source, probe.destination), {"share": share})
            for probe, share in zip(sweep.probes, sweep.shares, strict=True)
            if one.name in {(probe.source, probe.destination)[end] for end in ends}
        )
        found.append(Hypothesis(one, Standing.NAMED, shown))
    return found
