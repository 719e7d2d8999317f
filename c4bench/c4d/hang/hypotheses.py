"""What speaks for and against each suspect of a hang: who waits for whom, what runs, what is heard, what stalled."""

from collections.abc import Sequence

from c4bench.attribution.localise import Cell
from c4bench.c4d.hang.port_failures import ports_down
from c4bench.c4d.hang.stalls import unanswered, unanswered_credit, waiting_for_credit
from c4bench.c4d.hang.wait_for_graph import WaitForGraph, wait_graph
from c4bench.c4d.ingest.clocks import HostClocks
from c4bench.c4d.ingest.connections import ConnView, cell_of, progress_s
from c4bench.c4d.ingest.job_view import JobView
from c4bench.c4d.network.hypotheses import Arguments, crosses, dropped, elsewhere, standing
from c4bench.c4d.network.loss_counts import NO_COUNTS, nic_loss_counts, unanswered_packets
from c4bench.c4d.thresholds import benign_stall_s
from c4bench.model.diagnosis import Cause, Component, Diagnosis
from c4bench.model.hypothesis import Argument, Fact, Hypothesis, Standing

# So many connections are shown one by one, and so many ranks that were dropped.
_SHOWN = 3
_DROPPED = 4


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
        found = [Component("rank", f"{self._job.job}:{rank}") for rank in beside[:_DROPPED]]
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
