"""What Streaming DiLoCo learns beside data-parallel, at equal tokens."""

import statistics

import msgspec
import pytest

from c4bench.model.measurement import Clock
from c4bench.workload.diloco.parameters import Diloco
from c4bench.workload.diloco.together import train_together

# Outer rate and momentum are tuned on seed 1, as is the inner rate.
MODEL = {"model": {"layers": 2, "width": 16, "context": 32}, "rate": 5e-3, "sequences": 4, "sites": [[0], [1]]}
STREAMING = {"inner_steps": 30, "fragments": 2, "outer_rate": 0.7, "outer_momentum": 0.8, "steps": 3000}


@pytest.mark.nightly
def test_the_final_loss_is_that_of_data_parallel(measure):
    """The outer parameters' loss on held-out text is within 1 % of data-parallel's, the mean of three seeds."""

    def final(seed, **parameters):
        return train_together(msgspec.convert(MODEL | STREAMING | parameters, Diloco), seed).final

    ratios = [final(seed) / final(seed, method="data_parallel") for seed in (1, 2, 3)]
    for seed, ratio in enumerate(ratios, 1):
        measure("diloco.loss_ratio", ratio, clock=Clock.NONE, seed=seed)
    # Student's t of two degrees of freedom, 95 %.
    half_width = 4.303 * statistics.stdev(ratios) / len(ratios) ** 0.5
    measure("diloco.loss_ratio_half_width", half_width, clock=Clock.NONE)
    measure("diloco.loss_ratio", statistics.mean(ratios), at_most=1.01, clock=Clock.NONE, seed="mean")
