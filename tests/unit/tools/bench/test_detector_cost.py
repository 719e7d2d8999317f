"""What judging costs, by the size of the job."""

import pytest

from tools.bench.detector_cost import Cost, cost, exponent


def test_exponent_is_the_slope_in_logarithms():
    """Cost that grows with the square of the ranks has exponent two, however much it costs."""
    assert exponent([Cost(ranks, 0, 3e-6 * ranks**2, 0.0, 0) for ranks in (10, 100, 1000)]) == pytest.approx(2.0)


def test_a_small_job_is_judged_and_counted():
    """Two operations, two connections, two arrivals and a process of every rank are a second's records."""
    found = cost(200)
    assert found.records == 7 * 200
    assert 0 < found.evaluate_s <= found.worst_s
    assert found.resident_bytes > 1 << 20
