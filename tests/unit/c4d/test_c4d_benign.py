"""What is benign is no finding, however often it happens."""

import pytest
from c4d_benign import OPS, RANKS, soak
from night_cases import at_night

from c4bench.c4d.detector import Detector
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob


@pytest.mark.parametrize("seed", [0, *at_night(1)])
def test_benign_iterations_are_silent(seed):
    """Pauses, stalls, collections, flaps, neighbours and clock steps alarm nobody in two hundred iterations each."""
    found, iterations = soak(seed, 200)
    assert found == []
    assert iterations >= 200


def test_the_last_to_get_well_is_no_finding():
    """Half of all paths are slow for a second; in the span in which that ends one path alone still shows it."""
    half = RANKS // 2
    pairs = [(rank, peer) for rank in range(half) for peer in range(half, RANKS)]
    faults = [SimFault(SimFaultKind.PATH_RATE, a, 2.742354, 3.711319, 0.5125, peer=b) for a, b in pairs]
    detector = Detector()
    for tick in simulate(SimJob(RANKS, OPS, jitter=0.01, seed=28), faults, 5.0):
        for window in tick.windows:
            detector.ingest_window(window)
        assert detector.evaluate(tick.time_s) == []


@pytest.mark.nightly
@pytest.mark.parametrize("shard", range(100))
def test_a_million_benign_iterations_are_silent(shard):
    """No false alarm in 1,000,000 iterations: a shard is ten jobs of a thousand."""
    for seed in range(10 * shard, 10 * (shard + 1)):
        found, iterations = soak(1000 + seed, 1000)
        assert found == [], f"seed {1000 + seed}"
        assert iterations >= 1000
