"""A workload: what every rank of a job runs."""

import time

import numpy as np

from c4bench import CollectiveOptions, RankContext


def run(context: RankContext) -> None:
    """Sum a gradient over all ranks again and again."""
    gradient = np.ones(1 << 16, np.float32)
    with context.communicator("world", CollectiveOptions()) as comm:
        context.report("ready")
        while True:
            comm.all_reduce(gradient)
            gradient.fill(1)
            time.sleep(0.02)
