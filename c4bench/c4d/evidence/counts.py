"""Mismatches where only counts are known: members that have made as many calls, but not of the same kinds.

NCCL's RAS counts each kind of collective. As sets of counts say nothing of order, only members with as many calls as
most are compared.
"""

from collections import Counter

from c4bench.c4d.diagnosis import Finding
from c4bench.c4d.evidence.join import CommEvidence, JobEvidence
from c4bench.model.diagnosis import Cause, Component, OperationSide, Syndrome

Counts = tuple[tuple[str, int], ...]


def count_mismatch(job: JobEvidence) -> tuple[Finding, tuple[int, ...], bool] | None:
    """The finding, the ranks that differ, and whether these are surely to blame; None if all agree."""
    for comm in job.comms.values():
        sides = _sides(comm)
        if len(sides) < 2:
            continue
        fewest, most = sides[-1], sides[0]
        operations = tuple(_side(comm, counts, ranks) for counts, ranks in (fewest, most))
        evidence = tuple(f"ranks {', '.join(map(str, op.ranks[:8]))} called {op.profiling_name} of {comm.name}"
                         for op in operations)  # fmt: skip
        sure = len(fewest[1]) < len(most[1])
        finding = Finding(
            Syndrome.NON_COMMUNICATION_HANG,
            Cause.COLLECTIVE_TYPE_MISMATCH,
            Component("job", job.name),
            0.0,
            0.8,
            evidence,
            "the same program ending well on the same ranks",
            {"sides": float(len(sides))},
            operations=operations,
        )
        return finding, fewest[1] if sure else tuple(sorted(fewest[1] + most[1])), sure
    return None


def _sides(comm: CommEvidence) -> list[tuple[Counts, tuple[int, ...]]]:
    """The ranks by their counts, most ranks first, of those that have made as many calls as most."""
    members = [member for member in comm.members.values() if member.counts]
    if not members:
        return []
    usual = Counter(member.last for member in members).most_common(1)[0][0]
    by_counts: dict[Counts, list[int]] = {}
    for member in members:
        if member.last == usual:
            by_counts.setdefault(tuple(sorted(member.counts.items())), []).append(member.rank)
    return sorted(((counts, tuple(ranks)) for counts, ranks in by_counts.items()), key=lambda one: -len(one[1]))


def _side(comm: CommEvidence, counts: Counts, ranks: tuple[int, ...]) -> OperationSide:
    called = ", ".join(f"{count} {kind}" for kind, count in counts if count)
    return OperationSide(comm.name, sum(count for _, count in counts), called, "", -1, "started", ranks)
