"""Step loops that a lost NIC must slow down little: training with overlapped buckets, tensor-parallel decoding."""

import queue
import random
import threading
import time
from collections.abc import Callable
from typing import Literal

import msgspec
import numpy as np

from c4bench.collective.communicator import Communicator
from c4bench.collective.options import Options
from c4bench.workload.context import RankContext

Array = np.typing.NDArray[np.float32]


class Steps(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`steps` steps of `pieces` pieces, each of `compute_s` and an all-reduce of `piece_bytes`.

    In `training` a piece is a bucket of gradients, reduced while the next piece is computed; a step ends when all are
    reduced. In `decoding` a piece is a layer's partial sum, which the next layer needs; a step is a token. `jitter` is
    the relative standard deviation of computing time, from the seed.
    """

    loop: Literal["training", "decoding"]
    steps: int
    pieces: int
    piece_bytes: int
    compute_s: float
    jitter: float = 0.001
    resilient: bool = True
    profile: str = "brisk"


def run(context: RankContext) -> None:
    """Report `ready`, and finally `steps`: when each step ran, how long each computed, how many are exact."""
    parameters = context.parameters(Steps)
    with context.communicator("steps", Options.of(parameters)) as comm:
        comm.barrier()
        context.report("ready")
        loop = _Loop(context, parameters, comm)
        step = {"training": loop.training_step, "decoding": loop.decoding_step}[parameters.loop]
        spans = [_timed(step) for _ in range(parameters.steps)]
        comm.barrier()
    context.report("steps", spans=spans, computed_s=loop.computed_s, exact=loop.exact)


def _timed(step: Callable[[], None]) -> tuple[float, float]:
    began = time.time()
    step()
    return began, time.time()


class _Loop:
    """One rank's state between steps."""

    def __init__(self, context: RankContext, parameters: Steps, comm: Communicator) -> None:
        self._parameters = parameters
        self._comm = comm
        self._controls = context.controls
        self._noise = random.Random(f"{context.job.seed} {context.rank}")
        count = parameters.pieces if parameters.loop == "training" else 1
        self._arrays: list[Array] = [np.empty(parameters.piece_bytes // 4, np.float32) for _ in range(count)]
        self._sum = comm.size * (comm.size + 1) / 2
        self.computed_s: list[float] = []
        self.exact = 0

    def _compute(self) -> None:
        self._controls.compute(self._parameters.compute_s * max(0.0, self._noise.gauss(1.0, self._parameters.jitter)))

    def training_step(self) -> None:
        """Compute the pieces; a thread reduces each as soon as it is ready."""
        ready: queue.SimpleQueue[Array | None] = queue.SimpleQueue()
        errors: list[BaseException] = []
        reducer = threading.Thread(target=self._reduce, args=(ready, errors))
        reducer.start()
        began = time.monotonic()
        for array in self._arrays:
            self._compute()
            array.fill(self._comm.rank + 1)
            ready.put(array)
        self.computed_s.append(time.monotonic() - began)
        ready.put(None)
        reducer.join()
        if errors:
            raise errors[0]
        self.exact += all((array == self._sum).all() for array in self._arrays)

    def _reduce(self, ready: "queue.SimpleQueue[Array | None]", errors: list[BaseException]) -> None:
        while (array := ready.get()) is not None:
            try:
                self._comm.all_reduce(array)
            except BaseException as error:  # any exception must end the step
                errors.append(error)
                return

    def decoding_step(self) -> None:
        """Compute layer by layer; each waits for the sum of the previous one."""
        array, right = self._arrays[0], True
        began = time.monotonic()
        for _ in range(self._parameters.pieces):
            self._compute()
            array.fill(self._comm.rank + 1)
            self._comm.all_reduce(array)
            right = right and bool((array == self._sum).all())
        self.computed_s.append(time.monotonic() - began)
        self.exact += right
