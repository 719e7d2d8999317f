"""Ranks that gave up waiting, as a log has it: the job hung, and who waited is known, but not who was waited for."""

from c4bench.c4d.diagnosis import Finding
from c4bench.c4d.evidence.join import JobEvidence
from c4bench.c4d.evidence.judged import Judged
from c4bench.model.diagnosis import Cause, Component, Syndrome
from c4bench.model.evidence import TimedOut

_SHOWN = 8


def time_outs(job: JobEvidence) -> list[Judged]:
    """A finding for each operation in which ranks timed out; it blames nobody.

    Operations of different groups are not compared: their numbers have nothing to do with each other.
    """
    places: dict[tuple[str, int], list[TimedOut]] = {}
    for one in job.timeouts:
        places.setdefault((one.group, one.seq), []).append(one)
    return [_judged(job, waits) for _, waits in sorted(places.items())]


def _judged(job: JobEvidence, waits: list[TimedOut]) -> Judged:
    first = min(waits, key=lambda one: one.rank)
    shown = ", ".join(str(one.rank) for one in waits[:_SHOWN]) + (" ..." if len(waits) > _SHOWN else "")
    where = f"{first.kind or 'operation'} #{first.seq}" + (f" of {first.group}" if first.group else "")
    evidence = [f"{first.source}: ranks {shown} timed out after {first.after_s:g} s in {where}"]
    if first.completed >= 0:
        evidence.append(f"rank {first.rank} had completed #{first.completed} and called up to #{first.enqueued}")
    evidence.append("which rank they waited for is not in the log: nobody is known to be to blame")
    figures = {"waiting_ranks": float(len(waits)), "after_s": first.after_s}
    finding = Finding(
        Syndrome.COMMUNICATION_HANG, Cause.STUCK_INSIDE, Component("job", job.name), 0.0, 0.8 / max(job.ranks, 1),
        tuple(evidence), f"{where} ending on all ranks", figures,
    )  # fmt: skip
    return Judged(finding, (), sure=False, waiting=tuple(sorted(one.rank for one in waits)))
