"""Trials: a job is drawn from a seed, with faults, and what is said of its files is held against the faults."""

import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from c4bench.evidence.collect import collect
from c4bench.evidence.judging.hangs import Ground, ground_of
from c4bench.evidence.judging.judge import judge
from c4bench.model.evidence import EvidenceVerdict
from tools.foreign.dumps import Options, drawn_options, dumps
from tools.foreign.layout import drawn_program
from tools.foreign.run_ahead import Fault, FaultKind, RunAhead

_RANKS = tuple(1 << power for power in range(4, 13))
_WEIGHTS = (4, 4, 4, 4, 2, 2, 1, 1, 1)  # of these sizes
_CALLS = 12_000  # of all ranks, in an iteration
_CONFIDENT = 0.5
_LOST = 0.1
_TRIES = 200


class Trial(NamedTuple):
    """What was said of a job.

    `grounds` has, for each reason to name a rank alone, how many of those named were to blame, and how many there were.
    `exact`: those at fault were named and nobody else; `among`: all of them are suspected; `accused`: a rank that is
    not at fault is named alone; `confident`: so with more than an even chance. `read_s` is what reading and judging
    took.
    """

    seed: int
    ranks: int
    fault: str
    culprits: int
    options: Options
    exact: bool
    among: bool
    accused: bool
    confident: bool
    read_s: float
    said: str
    grounds: dict[Ground, tuple[int, int]]

    @property
    def line(self) -> str:
        """The trial in a line, for people."""
        shown = "among" if self.among else "missed"
        return (f"seed {self.seed}, {self.ranks} ranks, {self.fault} at {self.culprits}, timing {self.options.timing}, "
                f"only active {self.options.only_active}, buffer {self.options.buffer}: "
                f"{'accused' if self.accused else shown}: {self.said}")  # fmt: skip


def drawn_job(rng: random.Random) -> RunAhead:
    """A job in which the faults of one to three ranks have taken effect."""
    for _ in range(_TRIES):
        program = drawn_program(rng, rng.choices(_RANKS, _WEIGHTS)[0], _CALLS)
        kind = rng.choices(list(FaultKind), (0.8, 0.1, 0.1))[0]
        count = rng.randint(1, 3) if kind is FaultKind.STOPPED else 1
        faults = []
        for rank in rng.sample(range(program.layout.ranks), count):
            calls = program.calls(program.layout.stage(rank), 2)
            call = rng.randrange(len(calls) // 2, len(calls))
            if kind is FaultKind.MISMATCH and calls[call].transfers:
                continue
            faults.append(Fault(kind, rank, call))
        job = RunAhead(program, tuple(faults))
        if job.culprits():
            return job
    raise AssertionError("no fault took effect in any job that was drawn")


def trials(seed: int) -> tuple[Trial, Trial]:
    """Draw a job, write its files and judge them: all of them, and without a tenth."""
    rng = random.Random(seed)
    job, options = drawn_job(rng), drawn_options(rng)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, data in dumps(job, options, rng):
            (folder / name).write_bytes(data)
        whole = _judged(seed, job, options, folder)
        for path in sorted(folder.iterdir()):
            if rng.random() < _LOST:
                path.unlink()
        return whole, _judged(seed, job, options, folder)


def _judged(seed: int, job: RunAhead, options: Options, folder: Path) -> Trial:
    """What the files in a folder say, against the faults."""
    began_s = time.perf_counter()
    report = judge(collect([folder]))
    read_s = time.perf_counter() - began_s
    culprits, kind = set(job.culprits()), next(fault.kind for fault in job.faults.values())
    alone = [verdict for verdict in report.verdicts if verdict.sure or len(verdict.culprits) == 1]
    named = {rank for verdict in alone for rank in verdict.culprits}
    suspects = {rank for verdict in report.verdicts for rank in verdict.suspects}
    wrong = [verdict for verdict in alone if not culprits.issuperset(verdict.culprits)]
    # Without timing, an operation that all have called does not show which of its members holds it up.
    alike = kind is FaultKind.INSIDE and not options.timing
    told = suspects == set(_members(job)) if alike else named == suspects == culprits
    return Trial(
        seed, job.layout.ranks, str(kind), len(culprits), options,
        exact=told, among=culprits <= suspects, accused=bool(wrong),
        confident=any(verdict.diagnosis.confidence > _CONFIDENT for verdict in wrong), read_s=read_s,
        said="; ".join(f"{one.diagnosis.cause} {one.culprits[:8]}" for one in report.verdicts) or "nothing",
        grounds=_grounds(report.verdicts, culprits),
    )  # fmt: skip


def _grounds(verdicts: Sequence[EvidenceVerdict], culprits: set[int]) -> dict[Ground, tuple[int, int]]:
    """By ground, how many ranks were named alone and to blame, and how many were named alone."""
    found: dict[Ground, tuple[int, int]] = {}
    for one in verdicts:
        ground = ground_of(one.diagnosis)
        if ground is not None and len(one.culprits) == 1:
            right, of = found.get(ground, (0, 0))
            found[ground] = right + (one.culprits[0] in culprits), of + 1
    return found


def _members(job: RunAhead) -> tuple[int, ...]:
    """The members of the operation at which the first fault is."""
    fault = next(iter(job.faults.values()))
    run = job.runs[fault.rank]
    step = run.steps[fault.call]
    group = run.groups[step.dimension].members
    stages = {job.layout.stage(fault.rank), *(stage for _, stage in step.transfers)}
    return tuple(rank for rank in group if not step.transfers or job.layout.stage(rank) in stages)
