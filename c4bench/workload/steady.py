"""Repeat the same operation at regular times: the performance of a job while the fabric changes."""

import time

import msgspec
import numpy as np

from c4bench.collective.options import Options
from c4bench.workload.context import RankContext


class Steady(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All-reduce `size_bytes` of float32 `operations` times, at multiples of `period_s` on the host's clock.

    If an operation takes longer, the next one starts at the next multiple. The jobs of a meeting start together.
    """

    size_bytes: int
    operations: int
    period_s: float
    qps: int = 1
    paths: str = "planned"
    profile: str = "patient"
    chunk_bytes: int = Options().chunk_bytes
    staging_bytes: int = Options().staging_bytes


def run(context: RankContext) -> None:
    """Report `steady`: when operations began and ended, on the host's clock, and how many were exact."""
    parameters = context.parameters(Steady)
    array = np.empty(parameters.size_bytes // 4, np.float32)
    total = context.size * (context.size + 1) / 2
    spans: list[tuple[float, float]] = []
    exact = 0
    with context.communicator("steady", Options.of(parameters)) as comm:
        comm.barrier()
        context.report("ready")
        context.meet("start")
        for _ in range(parameters.operations):
            array.fill(context.rank + 1)
            time.sleep(parameters.period_s - time.time() % parameters.period_s)
            began = time.time()
            comm.all_reduce(array)
            spans.append((began, time.time()))
            exact += bool((array == total).all())
        context.meet("end")
    context.report("steady", spans=spans, exact=exact)
