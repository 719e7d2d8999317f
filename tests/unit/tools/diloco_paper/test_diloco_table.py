"""Table 4 of Streaming DiLoCo is reproduced, and the fitted bits are what the fit gives."""

import math

import pytest

from c4bench.cost.utilisation import (
    BITS_PER_PARAMETER,
    GRID_BPS,
    MODELS,
    UTILISATIONS,
    Compute,
    Granularity,
    Method,
    Pattern,
    Settings,
    cells,
    curve,
    layer_bits,
    printed,
    schedule,
    utilisation,
)
from tools.diloco_paper.fit import ENOUGH, fit
from tools.diloco_paper.published import (
    LARGER_MODELS,
    TABLE_4,
    grid_points,
    on_grid,
    published,
    steps_off,
    within_step,
)


def test_every_published_figure_is_printed_by_a_point_of_the_grid():
    """All 75 figures are bandwidths of the grid; only 0.5 is printed by two of them, 0.450 and 0.543."""
    figures = [figure for row in TABLE_4.values() for figure in row]
    assert len(figures) == 75
    assert {figure for figure in figures if not grid_points(figure)} == set()
    assert {figure for figure in figures if len(grid_points(figure)) > 1} == {"0.5"}
    assert [round(GRID_BPS[point] / 1e9, 3) for point in grid_points("0.5")] == [0.45, 0.543]
    assert grid_points("0.6") == ()


def test_bandwidths_are_rounded_twice():
    """1.151 is printed 1.1, by way of 1.15; 323.746 is printed 323.8, by way of 323.75."""
    assert [printed(GRID_BPS[index]) for index in (12, 13, 18, 22, 43)] == ["0.9", "1.1", "3.0", "6.2", "323.8"]


def test_published_rows_ask_for_more_bandwidth_for_more_utilisation():
    """No figure was mistyped such that a row falls; there is a row for each model and method."""
    assert set(TABLE_4) == {(model.name, method) for model in MODELS for method in Method}
    for row in TABLE_4.values():
        assert list(map(float, row)) == sorted(map(float, row))


def test_the_published_table_is_reproduced():
    """At least 65 of the 75 cells have the published bandwidth, and none is more than one step of the grid off."""
    table = cells()
    assert len(table) == 75
    assert on_grid(table) >= 65
    assert within_step(table) == 75


def test_differences_are_counted_from_the_published_figure():
    """A cell's steps are those between its bandwidth and what the paper prints, whatever counted them."""
    table = cells(settings=Settings(bits=2 * BITS_PER_PARAMETER))
    steps = [
        min((cell.point - index for index, bps in enumerate(GRID_BPS) if printed(bps) == published(cell)), key=abs)
        for cell in table
    ]
    assert [steps_off(cell) for cell in table] == steps
    # Twice the bits need twice the bandwidth, which is 3.7 steps, from a cell that is at most one off.
    assert all(2 <= step <= 5 for step in steps)
    assert on_grid(table) == within_step(table) == 0


def test_the_table_has_the_least_bandwidth_of_the_grid():
    """At a cell's bandwidth the utilisation is reached; at the grid point before it is not."""
    for model in MODELS:
        for method in Method:
            shares = curve(model, method)
            rows = [cell for cell in cells([model]) if cell.method is method]
            assert [cell.point for cell in rows] == [
                next(index for index, share in enumerate(shares) if share >= goal) for goal in UTILISATIONS
            ]


def test_the_bits_are_those_of_the_fit():
    """The constant is the middle of the bits that meet the most cells, to two decimals, and lies among them."""
    found = fit()
    assert round(found.bits, 2) == BITS_PER_PARAMETER
    assert found.low < BITS_PER_PARAMETER < found.high
    assert found.best == on_grid(cells())


@pytest.mark.nightly
@pytest.mark.parametrize("settings", [Settings(), Settings(waits=Granularity.LAYER)])
def test_the_fit_is_that_of_trying_many_bits(settings):
    """Trying bits one after the other meets the most cells where the fit says, and no more of them."""
    found = fit(settings)

    def met(bits):
        return on_grid(cells(settings=settings._replace(bits=bits)))

    tried = {bits: met(bits) for bits in [13.1 + 0.1 * step for step in range(7)]}
    assert max(tried.values()) <= found.best
    assert met(found.bits) == found.best
    assert max(met(found.low * (1 - 1e-6)), met(found.high * (1 + 1e-6))) < found.best
    low, high = found.flat
    assert all(count >= ENOUGH for bits, count in tried.items() if low < bits <= high)
    assert max(met(low * (1 - 1e-6)), met(high * (1 + 1e-6))) < ENOUGH
    near_low, near_high = found.near
    for inside, outside in ((near_low * (1 + 1e-6), near_low * (1 - 1e-6)), (near_high, near_high * (1 + 1e-6))):
        assert within_step(cells(settings=settings._replace(bits=inside))) == 75
        assert within_step(cells(settings=settings._replace(bits=outside))) < 75


def test_sequential_fragments_fit_worse():
    """The paper's default is strided; with sequential fragments no number of bits meets 65 cells."""
    found = fit(Settings(pattern=Pattern.SEQUENTIAL))
    assert found.best < ENOUGH
    assert all(math.isnan(end) for end in found.flat)


def test_a_figure_of_the_paper_that_nothing_was_fitted_to():
    """DeepSeek-V3 is at 99 % with at most 4 Gbit/s and 4 bits, and data-parallel at 1 Tbit/s: the paper's figure 16."""
    (deepseek,) = (model for model in LARGER_MODELS if model.name == "DeepSeek-V3")
    most = {cell.method: cell.bandwidth_bps for cell in cells([deepseek]) if cell.utilisation == 0.99}
    assert 2e9 < most[Method.FOUR_BIT] <= 4e9
    assert most[Method.DATA_PARALLEL] == pytest.approx(1e12, rel=0.21)


def test_longer_overlaps_need_less_bandwidth():
    """A 100B model gains little beyond five steps of overlap (the paper's figure 9), and never loses."""
    largest = MODELS[-1]
    needed = [
        next(
            cell.needed_bps
            for cell in cells([largest], Settings(overlap=overlap))
            if cell.method is Method.FOUR_BIT and cell.utilisation == 0.95
        )
        for overlap in (0, 1, 5, 20)
    ]
    assert needed == sorted(needed, reverse=True)
    assert needed[2] < needed[1]
    assert needed[3] > 0.9 * needed[2]


def test_cells_beyond_the_grid_and_not_published():
    """A model that the paper does not have is compared with nothing; where the grid ends the bandwidth is infinite."""
    model = MODELS[0]._replace(name="fast", step_s=1e-4)
    table = cells([model])
    assert {published(cell) for cell in table} == {""}
    assert on_grid(table) == within_step(table) == 0
    assert table[0].bandwidth_bps == math.inf


def test_layers_of_other_sizes_with_latency():
    """A layer list of the caller's gives the table's figures where it is the table's, and less with latency."""
    model, settings = MODELS[0], Settings()
    compute = Compute.equal(model.layers, model.step_s)
    bits, plan = layer_bits(model, Method.FOUR_BIT, settings), schedule(model, Method.FOUR_BIT, settings)
    rates = [1e9, 2e9]
    assert list(utilisation(compute, bits, plan, rates)) == curve(model, Method.FOUR_BIT, bandwidth_bps=rates)
    assert (utilisation(compute, bits, plan, rates, 0.1) < curve(model, Method.FOUR_BIT, bandwidth_bps=rates)).all()
