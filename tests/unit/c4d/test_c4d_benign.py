"""What is benign is no finding, however often it happens."""

import pytest
from c4d_benign import soak


@pytest.mark.parametrize("seed", range(2))
def test_benign_iterations_are_silent(seed):
    """Pauses, stalls, collections, flaps, neighbours and clock steps alarm nobody in five hundred iterations each."""
    found, iterations = soak(seed, 500)
    assert found == []
    assert iterations >= 500


@pytest.mark.nightly
@pytest.mark.parametrize("shard", range(100))
def test_a_million_benign_iterations_are_silent(shard):
    """No false alarm in 1,000,000 iterations: a shard is ten jobs of a thousand."""
    for seed in range(10 * shard, 10 * (shard + 1)):
        found, iterations = soak(1000 + seed, 1000)
        assert found == [], f"seed {1000 + seed}"
        assert iterations >= 1000
