"""What Streaming DiLoCo learns beside data-parallel at equal tokens, and what the overlap costs; in one process."""

import statistics

import msgspec
import pytest
from together import train_together

from c4bench.model.measurement import Clock
from c4bench.record.artefacts import LossCurve, LossCurves
from c4bench.workload.diloco.parameters import Diloco
from c4bench.workload.models import backends, corpus

# Minutes on a processor of its own, and more beside others; only a hang takes an hour.
pytestmark = pytest.mark.timeout(3600)
SIZE = {"layers": 2, "width": 16, "context": 32}
MODEL = {"model": SIZE, "sequences": 16, "sites": [[0], [1]], "inner_steps": 30, "fragments": 2}
# Each method's rates and momentum are the best of a few on seeds below 10; the seeds here were not used for that.
PARALLEL = {"method": "data_parallel", "rate": 0.02}
STREAMING = {"rate": 0.02, "outer_rate": 0.5, "outer_momentum": 0.8}
STEPS, SEEDS = 3000, (11, 12, 13)
# Student's t of two degrees of freedom, 95 %.
T_95 = 4.303
# 65,536 tokens: with few, the choice of text decides.
HELD_OUT = 2048
# A point of a curve is the mean of so many steps.
SMOOTHED = 100


def train(seed, steps, **parameters):
    """The trained model, and its loss on held-out text."""
    spec = msgspec.convert(MODEL | {"steps": steps} | parameters, Diloco)
    trained = train_together(spec, seed)
    held_out = corpus.load().held_out(HELD_OUT, spec.model.context)
    return trained, backends.create(spec.backend, spec.model).loss(trained.weights, held_out)


def curve(method, trained):
    """Training losses, the mean of all sites, over the tokens of all."""
    losses = [statistics.mean(each) for each in zip(*trained.losses, strict=True)]
    tokens = 2 * MODEL["sequences"] * SIZE["context"]
    ends = range(SMOOTHED, len(losses) + 1, SMOOTHED)
    return LossCurve(
        method, tuple((float(end * tokens), statistics.mean(losses[end - SMOOTHED : end])) for end in ends)
    )


def half_width(values):
    """Half of the 95 % interval of the mean."""
    return T_95 * statistics.stdev(values) / len(values) ** 0.5


@pytest.mark.nightly
def test_the_final_loss_is_that_of_data_parallel(measure, save):
    """The outer parameters' loss on held-out text is within 1 % of data-parallel's, the mean of three seeds."""
    ratios = []
    for seed in SEEDS:
        parallel, usual = train(seed, STEPS, **PARALLEL)
        streaming, loss = train(seed, STEPS, **STREAMING)
        ratios.append(loss / usual)
        measure("diloco.loss_ratio", ratios[-1], clock=Clock.NONE, seed=seed)
        if seed == SEEDS[0]:
            curves = curve("data-parallel", parallel), curve("Streaming DiLoCo", streaming)
            save("loss_curves", LossCurves(curves))
    measure("diloco.loss_ratio_half_width", half_width(ratios), clock=Clock.NONE)
    measure("diloco.loss_ratio", statistics.mean(ratios), at_most=1.01, clock=Clock.NONE, seed="mean")


@pytest.mark.nightly
@pytest.mark.parametrize("overlap", [1, 5, 10])
def test_overlap_costs_nothing(measure, overlap):
    """Receiving one to ten inner steps after sending costs at most 0.2 % of loss, the mean of three seeds."""
    # Turns are twelve steps apart.
    apart = STREAMING | {"inner_steps": 36}
    ratios = [
        train(seed, 1440, **apart, overlap=overlap)[1] / train(seed, 1440, **apart, overlap=0)[1] for seed in SEEDS
    ]
    measure("diloco.overlap_cost_half_width", half_width(ratios), clock=Clock.NONE, overlap=overlap)
    measure("diloco.overlap_cost", statistics.mean(ratios) - 1, at_most=0.002, clock=Clock.NONE, overlap=overlap)
