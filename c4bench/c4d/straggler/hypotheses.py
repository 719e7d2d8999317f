"""What speaks for and against each rank that may be late: how late it and the others were in the same operations."""

from collections.abc import Mapping

from c4bench.c4d.diagnosis import rank_component
from c4bench.c4d.ingest.job_view import JobView
from c4bench.c4d.straggler.stragglers import StragglerDetector
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.hypothesis import Argument, Fact, Hypothesis, Standing

# So many other ranks are shown, the latest.
_SHOWN = 2


def straggler_hypotheses(
    diagnosis: Diagnosis, job: JobView, detectors: Mapping[int, StragglerDetector]
) -> list[Hypothesis]:
    """The late rank, and those that were late next to it in the same operations of the communicator that showed it."""
    ops = int(diagnosis.figures["late_operations"])
    rank = int(diagnosis.component.name.rpartition(":")[2])
    figures = {"share": diagnosis.figures["late_share"], "operations": float(ops)}
    named = Hypothesis(diagnosis.component, Standing.NAMED, (Argument(Fact.LATE, (f"rank {rank}",), figures),))
    beside = sorted(_beside(rank, ops, job, detectors).items(), key=lambda item: -item[1])[:_SHOWN]
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
