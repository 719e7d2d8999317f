"""Record operations at a steady rate without traffic, to measure what reading and sending telemetry costs."""

import time

import msgspec

from c4bench.collective.options import now_ns
from c4bench.collective.recorder import Recorder
from c4bench.collective.ring_layout import ConnName
from c4bench.model.telemetry import CommRecord
from c4bench.workload.context import RankContext

_MESSAGE_BYTES = 1 << 18


class Pulse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`operations_per_s`, each with a message to every other rank and one from each."""

    operations_per_s: float


def run(context: RankContext) -> None:
    """Record until stopped. Reports `ready` after the first operation."""
    parameters = context.parameters(Pulse)
    pulse = _Pulse(context, context.recorder)
    begun_s = time.monotonic()
    number = 0
    while True:
        pulse.operation(number)
        if number == 0:
            context.report("ready")
        number += 1
        time.sleep(max(0.0, begun_s + number / parameters.operations_per_s - time.monotonic()))


class _Pulse:
    """The records of one rank of a communicator in which all pairs are connected."""

    def __init__(self, context: RankContext, recorder: Recorder) -> None:
        self._recorder = recorder
        job, own = context.job, context.rank
        nics = [member.nics[0] for member in job.members]
        self._comm = recorder.communicator(CommRecord(f"{job.id}:data", job.id, job.members), own)
        peers = [peer for peer in range(context.size) if peer != own]
        names = [(peer, ConnName(self._comm, peer, nics[own], nics[peer], peer)) for peer in peers]
        self._ends = [recorder.connection(name, 0, now_ns()) for _, name in names]
        backwards = [ConnName(self._comm, peer, nics[peer], nics[own], own) for peer in peers]
        self._arrivals = [recorder.arrivals(name) for name in backwards]

    def operation(self, number: int) -> None:
        """Record a whole operation."""
        size_bytes = _MESSAGE_BYTES * len(self._ends)
        op = self._recorder.operation(self._comm, number, "all_to_all", "shift", "float32", size_bytes, now_ns())
        op.store()
        for end in self._ends:
            end.post(now_ns())
            end.set_state("transfer", 1, 0, now_ns())
        op.start(now_ns())
        for end, arrival in zip(self._ends, self._arrivals, strict=True):
            end.acknowledge(_MESSAGE_BYTES, now_ns())
            end.set_state("idle", 0, 0, now_ns())
            arrival.arrived(now_ns())
            arrival.store()
        op.finish(now_ns())
