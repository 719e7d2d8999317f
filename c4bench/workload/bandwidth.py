"""Measure one collective: check every element, time every operation."""

import time

import msgspec
import numpy as np

from c4bench.collective.options import Options
from c4bench.verbs.transport import PROFILES
from c4bench.workload.cases import Call, Kind, arguments
from c4bench.workload.collectives import METHODS, exact_elements
from c4bench.workload.context import RankContext
from c4bench.workload.payload import Payload

_SHARED_OUT = frozenset({"all_gather", "reduce_scatter", "all_to_all"})


class Bandwidth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Run `collective` on float32, `warmup` + `operations` times, each after a barrier unless `back_to_back`.

    `size_bytes` is the larger of a rank's arrays, as in nccl-tests; an array with a part for each rank is rounded down
    to whole parts.
    """

    size_bytes: int
    collective: Kind = "all_reduce"
    operations: int = 3
    warmup: int = 1
    back_to_back: bool = False
    paths: str = "planned"
    profile: str = "patient"
    chunk_bytes: int = Options().chunk_bytes
    channels: int = 0
    record: bool = True
    corrupt: bool = False  # change one element on rank 0 before checking: the check must notice

    def call(self, size: int) -> Call:
        """The call that each of `size` ranks makes."""
        items = self.size_bytes // np.dtype(np.float32).itemsize
        return Call(self.collective, count=items // size if self.collective in _SHARED_OUT else items)

    def options(self) -> Options:
        """The communicator's options."""
        return Options(
            paths=self.paths,
            profile=PROFILES[self.profile],
            chunk_bytes=self.chunk_bytes,
            staging_bytes=max(Options().staging_bytes, self.chunk_bytes),
            channels=self.channels,
            record=self.record,
        )


def run(context: RankContext) -> None:
    """Report, under the collective's name, how many checked elements are exact and when each operation ran."""
    parameters = context.parameters(Bandwidth)
    call = parameters.call(context.size)
    expected = arguments(call, context.rank, context.size)
    arrays = [np.empty(argument.items, np.float32) for argument in expected]
    exact = checked = 0
    spans: list[tuple[float, float]] = []
    with context.communicator("bandwidth", parameters.options()) as comm:
        for step in range(parameters.warmup + parameters.operations):
            payload = Payload(context.size, step)
            for array, argument in zip(arrays, expected, strict=True):
                if argument.is_input:
                    payload.fill(array, context.rank)
            if step == parameters.warmup or not parameters.back_to_back:
                comm.barrier()
            began = time.monotonic()
            METHODS[call.kind](comm, call, arrays)
            spans.append((began, time.monotonic()))
            if parameters.corrupt and context.rank == 0:
                arrays[0][0] += 1
            exact += sum(
                exact_elements(array, argument, payload) for array, argument in zip(arrays, expected, strict=True)
            )
            checked += sum(array.size for array in arrays)
        comm.barrier()  # reporting loads the agent, which would slow down the last operation of other ranks
    context.report(call.kind, exact=exact, checked=checked, spans=spans[parameters.warmup :])
