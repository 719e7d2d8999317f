"""The same all-reduce with the recorder on and off alternately."""

import time

import msgspec
import numpy as np

from c4bench.collective.options import Options
from c4bench.workload.context import RankContext


class Recording(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """In each of `rounds`, all-reduce `size_bytes` of float32 `operations` times with the recorder, and without."""

    size_bytes: int
    rounds: int
    operations: int = 4


def run(context: RankContext) -> None:
    """Report `recording`: for each round how long the operations took, (recorder on, recorder off), in s.

    The order alternates, so that drift of the machine favours neither.
    """
    parameters = context.parameters(Recording)
    array = np.zeros(parameters.size_bytes // 4, np.float32)
    pairs: list[tuple[float, float]] = []
    with (
        context.communicator("on", Options(record=True)) as on,
        context.communicator("off", Options(record=False)) as off,
    ):
        for number in range(parameters.rounds + 1):
            took = {}
            for comm in (on, off) if number % 2 else (off, on):
                comm.barrier()
                began = time.monotonic()
                for _ in range(parameters.operations):
                    comm.all_reduce(array)
                took[comm] = time.monotonic() - began
            pairs.append((took[on], took[off]))
    context.report("recording", pairs=pairs[1:])
