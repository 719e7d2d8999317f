"""One collective, step by step: when each rank was ready for, began and ended each message.

In step k every rank sends one message to the rank `shift[k]` positions on in its communicator. It needs the one sent
to it before step k + 1; a ring repeats shift 1, the linear-shift all-to-all uses 1 to n - 1. Rank is the last axis.
"""

import msgspec
import numpy as np

from c4bench.model.step import StepOp
from tools.sim.arrays import Floats, Ints
from tools.sim.places import Places
from tools.sim.world import FaultState


class Steps(msgspec.Struct, frozen=True):
    """The shift of each step of a collective; the numbers of its connections, and the first step that uses each."""

    shifts: tuple[int, ...]
    connections: Ints
    firsts: Ints


class OpTrace(msgspec.Struct, frozen=True):
    """Times (s) of one collective; never is infinity. All arrays have shape (steps, ranks), the last two (ranks,).

    `free`: the sender is done with its last message; `ready`: it also has the data for this one; `start`: it also has
    credit; `end`: acknowledged; `arrived`: the message that each rank receives in this step is.
    """

    op: StepOp
    places: Places
    steps: Steps
    seq: int
    message_bytes: int
    free: Floats
    ready: Floats
    start: Floats
    end: Floats
    arrived: Floats
    entered: Floats
    finished: Floats


class ReceiverQueues:
    """The receivers of all NICs; messages to a busy receiver queue."""

    def __init__(self, world: FaultState) -> None:
        self._world = world
        self._free: Floats = np.full(world.job.ranks, -np.inf)
        self._latest: Floats = np.full(world.job.ranks, -np.inf)

    def deliver(self, peer: Ints, start: Floats, message_bytes: int) -> Floats:
        """When messages that start at `start`, one from each rank to its `peer`, are acknowledged; shape (ranks,).

        A message ends when both its sender and its receiver have carried it. A message to or from a rank that is killed
        meanwhile is never acknowledged. Calls are in order of steps, not of times: a message that starts before one of
        an earlier step does not queue behind it.
        """
        world = self._world
        posted, (start, sending, receiving) = start, world.carried(peer, start)
        free, latest = self._free[peer], self._latest[peer]
        queued = np.maximum(start, free, out=start.copy(), where=start >= latest)
        sent: Floats = start + message_bytes / sending
        received: Floats = queued + message_bytes / receiving
        self._free[peer] = np.maximum(free, received, out=free, where=np.isfinite(received))
        self._latest[peer] = np.maximum(latest, start, out=latest, where=np.isfinite(start))
        end: Floats = np.maximum(sent, received)
        if not world.some_end:
            return end
        lost = (end > world.ended_s) | (end > world.ended_s[peer]) | np.isinf(posted)
        return np.where(lost, np.inf, end)


def shifts_of(kind: str, ranks: int) -> tuple[int, ...]:
    """The shift of each step of a collective. Raises KeyError for a kind that is not simulated."""
    return {
        "all_reduce": (1,) * (2 * (ranks - 1)),
        "all_gather": (1,) * (ranks - 1),
        "all_to_all": tuple(range(1, ranks)),
        "send": (1,),
    }[kind]


def run_op(world: FaultState, op: StepOp, places: Places, steps: Steps, seq: int, entered: Floats) -> OpTrace:
    """Simulate one collective in all communicators of its group, whose ranks enter it at `entered`."""
    message_bytes = op.size_bytes // (1 if op.kind == "send" else places.size)
    times: list[Floats] = []
    free, ready = entered, world.joined(entered)
    queues = ReceiverQueues(world)
    # A rate may be 0.
    with np.errstate(divide="ignore"):
        for shift in steps.shifts:
            peer = places.peer(shift)
            start = world.acts(np.maximum(ready, ready[peer])) if world.job.credits else ready
            end = queues.deliver(peer, start, message_bytes)
            arrived = end[places.peer(-shift)]
            times += free, ready, start, end, arrived
            free, ready = end, world.acts(np.maximum(end, arrived))
    return OpTrace(
        op,
        places,
        steps,
        seq,
        message_bytes,
        free=np.array(times[0::5]),
        ready=np.array(times[1::5]),
        start=np.array(times[2::5]),
        end=np.array(times[3::5]),
        arrived=np.array(times[4::5]),
        entered=entered,
        finished=ready,
    )
