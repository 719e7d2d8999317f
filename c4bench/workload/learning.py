"""A training job that really learns: a transformer, data-parallel, whose state is saved in checkpoints.

Each rank computes the gradient of its own batch, the fabric sums them, and every rank takes the same step of AdamW.

Starting the process, and loading and saving checkpoints, take no time here, so they are modelled by sleeping, at rates
that are parameters.
"""

import itertools
import random
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from c4bench.collective.communicator import Communicator
from c4bench.collective.options import Options
from c4bench.collective.schedule import split
from c4bench.workload.checkpoint import DIGEST_BYTES, RESUMED, Checkpoints
from c4bench.workload.context import RankContext
from c4bench.workload.jobs import host_rank
from c4bench.workload.models import backends, corpus
from c4bench.workload.models.backends import Backend
from c4bench.workload.models.optimisers import AdamW
from c4bench.workload.models.size import Size

_ITEM_BYTES = np.dtype(np.float32).itemsize


class Learning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Train for `steps` (0: until stopped), with a checkpoint in folder `checkpoints` every `checkpoint_every` steps.

    Without a folder there are no checkpoints. All hosts must share it.

    A step computes for `compute_s`, with `jitter` as in `Training`, sums `gradient_bytes` of gradients, or those of the
    model if they are more, and exchanges `token_bytes`, if any, all-to-all. A rank's process takes `start_s` to start;
    its share of a checkpoint is `state_bytes`, saved and loaded at the rates given. Rank 0 reports the losses every
    `report_every` steps. The model is a transformer of `model`'s size, computed by `backend`. A rank's batch has
    `sequences` of the model's context; `rate` is AdamW's.
    """

    checkpoints: str = ""
    checkpoint_every: int = 20
    steps: int = 0
    gradient_bytes: int = 1 << 20
    token_bytes: int = 1 << 20
    compute_s: float = 0.04
    jitter: float = 0.01
    start_s: float = 3.0
    state_bytes: int = 4 << 30
    save_bytes_per_s: float = 8e9
    load_bytes_per_s: float = 2e9
    report_every: int = 20
    model: Size = Size(width=16)
    backend: Backend = "numpy"
    sequences: int = 2
    rate: float = 1e-2
    paths: str = "planned"
    qps: int = Options().qps
    profile: str = "brisk"


def check(parameters: dict[str, Any]) -> None:
    """Raise UsageError or ValidationError if a job with these parameters cannot run, as far as can be seen here."""
    backends.check(msgspec.convert(parameters, Learning).backend)
    corpus.load()


def run(context: RankContext) -> None:
    """Resume from the newest complete checkpoint, if there is one; `losses` are hexadecimal to be exact."""
    parameters = context.parameters(Learning)
    check(context.job.parameters)
    time.sleep(parameters.start_s)
    with context.communicator("data", Options.of(parameters)) as comm:
        learner = Learner(comm, parameters, context)
        began = learner.load()
        losses: list[str] = []
        for step in itertools.count(began) if parameters.steps == 0 else range(began, parameters.steps):
            losses.append(learner.step(step).hex())
            if step == began:
                context.report(RESUMED, step=began)
            done = step + 1
            if parameters.checkpoints and done % parameters.checkpoint_every == 0:
                learner.save(done)
            if done % parameters.report_every == 0 or done == parameters.steps:
                if context.rank == 0:
                    context.report("losses", first=done - len(losses), losses=losses)
                losses.clear()


class Learner:
    """One rank's copy of the model and of its optimiser."""

    def __init__(self, comm: Communicator, parameters: Learning, context: RankContext) -> None:
        self._comm, self._parameters, self._context = comm, parameters, context
        self._checkpoints = Checkpoints(Path(parameters.checkpoints))
        self._corpus = corpus.load()
        self._model = backends.create(parameters.backend, parameters.model, host_rank(context.job, context.rank))
        self._weights = self._model.initial(context.job.seed)
        self._optimiser = AdamW(self._weights.size, parameters.rate)
        # The gradient of this rank's batch, then the batch's loss.
        items = max(parameters.gradient_bytes // _ITEM_BYTES, self._weights.size + 1)
        self._gradient = np.zeros(items, np.float32)
        self._tokens = np.zeros((comm.size, parameters.token_bytes // _ITEM_BYTES // comm.size), np.float32)
        self._received = np.empty_like(self._tokens)

    def step(self, step: int) -> float:
        """One iteration; returns the loss, the mean over all ranks' batches."""
        parameters, seed, rank = self._parameters, self._context.job.seed, self._comm.rank
        noise = random.Random(f"{seed} {rank} {step}")
        self._context.controls.compute(parameters.compute_s * max(0.0, noise.gauss(1.0, parameters.jitter)))
        batch = self._corpus.batch(seed, step, rank, parameters.sequences, parameters.model.context)
        mean = self._gradient[: self._weights.size + 1]
        mean[-1] = self._model.gradient(self._weights, batch, mean[:-1])
        self._comm.all_reduce(self._gradient)
        if self._tokens.size:
            self._comm.all_to_all(self._received, self._tokens)
        mean /= np.float32(self._comm.size)
        self._optimiser.step(step + 1, self._weights, mean[:-1])
        return float(mean[-1])

    def save(self, step: int) -> None:
        """Write this rank's shard of the state after step `step`, and complete the checkpoint once all ranks have."""
        state = np.concatenate((self._weights, self._optimiser.state))
        begin, end = split(state.size, self._comm.size)[self._comm.rank]
        time.sleep(self._parameters.state_bytes / self._parameters.save_bytes_per_s)
        digest = self._checkpoints.write(step, self._comm.rank, self._comm.size, state[begin:end].tobytes())
        digests = np.zeros((self._comm.size, DIGEST_BYTES // _ITEM_BYTES), np.int32)
        self._comm.all_gather(digests, np.frombuffer(digest, np.int32))
        if self._comm.rank == 0:
            self._checkpoints.complete(step, [row.tobytes() for row in digests])

    def load(self) -> int:
        """Load the newest checkpoint that every rank finds complete; returns its step, 0 if there is none."""
        if not self._parameters.checkpoints:
            return 0
        own = np.array([self._checkpoints.newest() or 0], np.int64)
        seen = np.zeros(self._comm.size, np.int64)
        self._comm.all_gather(seen, own)
        step = int(seen.min())
        if step:
            time.sleep(self._parameters.state_bytes / self._parameters.load_bytes_per_s)
            state = np.frombuffer(self._checkpoints.read(step), np.float32)
            self._weights[:], self._optimiser.state[:] = np.split(state, [self._weights.size])
        return step
