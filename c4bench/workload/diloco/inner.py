"""Inner steps: data-parallel training among the ranks of one communicator."""

import random
import time

import numpy as np

from c4bench.collective.communicator import Communicator
from c4bench.errors import UsageError
from c4bench.workload.controls import Controls
from c4bench.workload.diloco.parameters import Diloco
from c4bench.workload.models.corpus import Corpus
from c4bench.workload.models.optimisers import AdamW
from c4bench.workload.models.protocol import Model, Vector


class Batches:
    """The gradient of a rank's own batch, by the seed, the step and the rank alone."""

    def __init__(self, model: Model, corpus: Corpus, parameters: Diloco, seed: int) -> None:
        self._model, self._corpus, self._seed = model, corpus, seed
        self._shape = parameters.sequences, parameters.model.context

    def gradient(self, weights: Vector, number: int, rank: int, into: Vector) -> float:
        """Write the gradient of a rank's batch in inner step `number`, from 1, and return its loss."""
        batch = self._corpus.batch(self._seed, number - 1, rank, *self._shape)
        return self._model.gradient(weights, batch, into)


class InnerStep:
    """Steps of rank `rank`, whose `weights` are changed in place; `computed_s` sums the time that they computed."""

    def __init__(
        self,
        batches: Batches,
        weights: Vector,
        inner: AdamW,
        comm: Communicator,
        controls: Controls,
        parameters: Diloco,
        rank: int,
    ) -> None:
        self._batches, self._weights, self._inner, self._comm = batches, weights, inner, comm
        self._controls, self._parameters, self._rank = controls, parameters, rank
        # The gradient, then the loss.
        self._sum = np.zeros(weights.size + 1, np.float32)
        self.computed_s = 0.0

    def __call__(self, number: int) -> float:
        """Inner step `number`, from 1; returns the mean loss of all ranks' batches."""
        noise = random.Random(f"{self._rank} {number}").gauss(1.0, self._parameters.jitter)
        began_s = time.monotonic()
        self._controls.compute(self._parameters.compute_s * max(0.0, noise))
        self.computed_s += time.monotonic() - began_s
        total = self._sum
        total[-1] = self._batches.gradient(self._weights, number, self._rank, total[:-1])
        self._reduce(total)
        total /= np.float32(self._comm.size)
        self._inner.rate = self._parameters.rate_at(number)
        self._inner.step(number, self._weights, total[:-1])
        return float(total[-1])

    def _reduce(self, total: Vector) -> None:
        if self._parameters.gradients == "float32":
            self._comm.all_reduce(total)
            return
        short = total[:-1].astype(_bfloat16())
        self._comm.all_reduce(short)
        self._comm.all_reduce(total[-1:])
        total[:-1] = short


def _bfloat16() -> np.dtype[np.generic]:
    """Numpy's bfloat16, which comes with another package. Raises UsageError if that is not installed."""
    try:
        from ml_dtypes import bfloat16  # noqa: PLC0415  (only these jobs need it)
    except ImportError:
        raise UsageError("gradients: bfloat16 needs ml_dtypes; run: pip install ml-dtypes") from None
    kind: np.dtype[np.generic] = np.dtype(bfloat16)
    return kind
