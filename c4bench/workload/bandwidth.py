"""Measure one collective: check every element, time every operation."""

import time

import msgspec

from c4bench.collective.options import Options
from c4bench.workload.collectives import Call, Kind, RepeatedCall, sized_call
from c4bench.workload.context import RankContext


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
    algorithm: str = Options().algorithm
    chunk_bytes: int = Options().chunk_bytes
    channels: int = 0
    record: bool = True
    corrupt: bool = False  # change one element on rank 0 before checking: the check must notice

    def call(self, size: int) -> Call:
        """The call that each of `size` ranks makes."""
        return sized_call(self.collective, self.size_bytes, size)

    def options(self) -> Options:
        """The communicator's options."""
        return Options.of(self, staging_bytes=max(Options().staging_bytes, self.chunk_bytes))


def run(context: RankContext) -> None:
    """Report, under the collective's name, how many checked elements are exact and when each operation ran."""
    parameters = context.parameters(Bandwidth)
    call = RepeatedCall(parameters.call(context.size), context.rank, context.size)
    exact = checked = 0
    spans: list[tuple[float, float]] = []
    with context.communicator("bandwidth", parameters.options()) as comm:
        for step in range(parameters.warmup + parameters.operations):
            call.fill(step)
            if step == parameters.warmup or not parameters.back_to_back:
                comm.barrier()
            began = time.monotonic()
            call(comm)
            spans.append((began, time.monotonic()))
            if parameters.corrupt and context.rank == 0:
                call.arrays[0][0] += 1
            exact += call.exact()
            checked += call.items
        comm.barrier()  # reporting loads the agent, which would slow down the last operation of other ranks
    context.report(parameters.collective, exact=exact, checked=checked, spans=spans[parameters.warmup :])
