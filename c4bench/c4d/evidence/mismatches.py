"""Bugs of a job that its calls show without a wait-for graph: transfers of unequal size, and counts that differ."""

from c4bench.c4d.diagnosis import Finding
from c4bench.c4d.evidence.counts import count_mismatch
from c4bench.c4d.evidence.join import JobEvidence
from c4bench.c4d.evidence.judged import Judged
from c4bench.c4d.evidence.transfers import transfers_of
from c4bench.c4d.evidence.waiting import record
from c4bench.c4d.hang.mismatch import side
from c4bench.model.diagnosis import Cause, Component, Syndrome


def unequal_transfer(job: JobEvidence) -> Judged | None:
    """A send that meets a receive of another size; either rank may be wrong."""
    found = next((one for transfers in transfers_of(job) for one in transfers.unequal()), None)
    if found is None:
        return None
    sides = ((found.sender, found.send), (found.receiver, found.recv))
    evidence = tuple(f"rank {rank} called {call.kind} #{call.seq} of {found.comm} with {call.size_bytes} bytes"
                     for rank, call in sides)  # fmt: skip
    operations = tuple(side(record(found.comm, rank, call), (rank,)) for rank, call in sides)
    finding = Finding(
        Syndrome.NON_COMMUNICATION_HANG, Cause.SIZE_OR_SYNTAX_MISMATCH, Component("job", job.name), 0.0, 0.8, evidence,
        "the same program ending well on the same ranks", {"sides": 2.0}, operations=operations,
    )  # fmt: skip
    return Judged(finding, tuple(sorted((found.sender, found.receiver))), sure=False)


def count_judged(job: JobEvidence) -> Judged | None:
    """The mismatch that counts of calls show, if any."""
    found = count_mismatch(job)
    return Judged(found[0], found[1], sure=found[2]) if found else None
