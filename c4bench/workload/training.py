"""A training job's steps until it is stopped: compute, all-reduce gradients, all-to-all tokens."""

import random

import msgspec
import numpy as np

from c4bench.collective.options import Options
from c4bench.workload.context import RankContext


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes of each collective, and computing time of a step; `jitter` is its relative standard deviation."""

    gradient_bytes: int
    token_bytes: int
    compute_s: float
    jitter: float = 0.01
    paths: str = "planned"
    qps: int = Options().qps
    profile: str = "brisk"


def run(context: RankContext) -> None:
    """Train until stopped. Reports `ready` once the connections are up."""
    parameters = context.parameters(Training)
    noise = random.Random(f"{context.job.seed} {context.rank}")
    gradient = np.zeros(parameters.gradient_bytes // 4, np.float32)
    tokens = np.zeros((context.size, parameters.token_bytes // 4 // context.size), np.float32)
    received = np.empty_like(tokens)
    with context.communicator("data", Options.of(parameters)) as comm:
        comm.all_to_all(received, tokens)
        context.report("ready")
        while True:
            duration_s = parameters.compute_s * max(0.0, noise.gauss(1.0, parameters.jitter))
            context.controls.compute(duration_s)
            comm.all_reduce(gradient)
            comm.all_to_all(received, tokens)
