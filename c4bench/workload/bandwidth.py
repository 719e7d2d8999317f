"""Measured all-reduce: every element checked, every operation timed."""

import time

import msgspec
import numpy as np

from c4bench.collective.options import Options
from c4bench.verbs.transport import PROFILES
from c4bench.workload import payload
from c4bench.workload.context import RankContext


class Bandwidth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All-reduce `size_bytes` of float32, `warmup` + `operations` times."""

    size_bytes: int
    operations: int = 3
    warmup: int = 1
    paths: str = "planned"
    profile: str = "patient"
    corrupt: bool = False  # change one element on rank 0 before checking: the check must notice


def run(context: RankContext) -> None:
    """Report `all_reduce`: exact elements of all checked, and when the timed operations began and ended."""
    wanted = context.parameters(Bandwidth)
    array = np.empty(wanted.size_bytes // 4, np.float32)
    options = Options(paths=wanted.paths, profile=PROFILES[wanted.profile])
    exact = checked = 0
    spans: list[tuple[float, float]] = []
    with context.communicator("bandwidth", options) as comm:
        for step in range(wanted.warmup + wanted.operations):
            payload.fill(array, context.rank, step)
            comm.barrier()
            began = time.monotonic()
            comm.all_reduce(array)
            spans.append((began, time.monotonic()))
            if wanted.corrupt and context.rank == 0:
                array[0] += 1
            exact += payload.exact_elements(array, context.size, step)
            checked += array.size
    context.report("all_reduce", exact=exact, checked=checked, spans=spans[wanted.warmup :])
