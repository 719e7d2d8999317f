"""From what ranks report to figures of merit."""

import pytest

from c4bench.bench.figures import bus_bandwidth_bps, bus_factor, cost_fractions, median_ratio
from c4bench.bench.suites import COLLECTIVES


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("all_reduce", 1.75),
        ("all_gather", 0.875),
        ("reduce_scatter", 0.875),
        ("all_to_all", 0.875),
        ("broadcast", 1.0),
        ("reduce", 1.0),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(collective, factor):
    """Over eight ranks a byte of array is so many bytes on each rank's NIC."""
    assert bus_factor(collective, 8) == factor


def test_every_collective_of_the_suite_has_a_factor():
    """None of them would end the bench half-way."""
    assert all(bus_factor(collective, 2) > 0 for collective in COLLECTIVES)


def test_the_slowest_rank_counts_on_its_own_clock():
    """Ranks whose clocks are hours apart give the bandwidth of the one that took longest."""
    results = [{"spans": [(0.0, 1.0), (1.0, 2.0)]}, {"spans": [(9000.0, 9001.0), (9001.0, 9004.0)]}]
    assert bus_bandwidth_bps("all_reduce", 1000, results) == 1000 * 8 * 2 / 4.0


def test_one_bad_round_does_not_move_the_ratio():
    """The median of paired ratios stands where a mean of bandwidths would not."""
    assert median_ratio([(2.0, 2.0), (1.9, 2.0), (0.01, 5.0), (2.1, 2.0), (1.9, 2.0)]) == pytest.approx(0.95)


def test_a_recorder_that_takes_a_hundredth_longer_costs_that_of_the_bandwidth():
    """A round's cost is what the slowest rank loses; nothing where on and off take the same."""
    assert cost_fractions([[(1.0, 0.99), (2.0, 2.0)], [(0.5, 0.5), (1.0, 1.5)]]) == [pytest.approx(0.01), 0.0]
