"""The same job on new connections again and again, ECMP and plan in turn: draws of the fabric's hashing."""

import time

import msgspec
import numpy as np

from c4bench.collective.options import Options
from c4bench.verbs.transport import PROFILES
from c4bench.workload.context import RankContext


class Draws(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Draw `draws` times with each of `paths`, in turn.

    All jobs that name the same `meeting` measure at the same time; `meeting_size` take part in it, this job's ranks
    from `first_rank` on.
    """

    size_bytes: int
    draws: int
    meeting: str
    first_rank: int
    meeting_size: int
    operations: int = 2
    paths: tuple[str, ...] = ("ecmp", "planned")
    profile: str = "patient"


def run(context: RankContext) -> None:
    """Report one `draw` per round: which paths, and when its timed operations began and ended."""
    wanted = context.parameters(Draws)
    own = wanted.first_rank + context.rank
    array = np.zeros(wanted.size_bytes // 4, np.float32)
    for number in range(wanted.draws * len(wanted.paths)):
        paths = wanted.paths[number % len(wanted.paths)]
        options = Options(paths=paths, profile=PROFILES[wanted.profile])
        context.meet(wanted.meeting, f"open{number}", own, wanted.meeting_size)
        with context.communicator(f"draw{number}", options) as comm:
            comm.all_reduce(array)
            context.meet(wanted.meeting, f"draw{number}", own, wanted.meeting_size)
            began = time.monotonic()
            for _ in range(wanted.operations):
                comm.all_reduce(array)
            ended = time.monotonic()
            context.meet(wanted.meeting, f"end{number}", own, wanted.meeting_size)
        context.report("draw", number=number, paths=paths, began_s=began, ended_s=ended)
