import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.model.diagnosis import Syndrome
from c4bench.model.measurement import Clock, Measurement, Outcome, evaluate
from c4bench.record.artefacts import (
    Ablation,
    AblationCell,
    DelayMatrix,
    FaultTimeline,
    Growth,
    LinkBytes,
    LossCurve,
    LossCurves,
    StepBytes,
)
from c4bench.report.charts.bars import bars, bullet, cases
from c4bench.report.charts.curves import byte_dots, growth, loss_plot
from c4bench.report.charts.fabric import step
from c4bench.report.charts.heatmap import heatmap, usual
from c4bench.report.charts.timeline import common_axis, reached, timeline
from c4bench.report.headlines import format_limit, format_value, headlines, margin, short
from c4bench.report.svg import element


def measurement(value, limit, name="x", unit="1", **labels):
    return Measurement("s", name, value, unit, limit, evaluate(value, limit), Clock.VIRTUAL, labels)


def fault(*stages):
    return FaultTimeline("nic.down", "nic h1/0", Syndrome.COMMUNICATION_HANG, 5.0, *stages)


def test_text_and_attributes_are_escaped():
    """Neither text nor an attribute can end its element."""
    assert element("text", "<a>", x=1.0, class_='"q"') == '<text x="1" class="&#34;q&#34;">&lt;a&gt;</text>'


@pytest.mark.parametrize(("load", "expected"), [(0.0, "l0"), (0.5, "l2"), (1.0, "l4"), (1.02, "l5"), (9.0, "l5")])
def test_only_contended_links_are_red(load, expected):
    """A link at its rate is full, one offered more is contended."""
    assert step(load) == expected


@given(st.floats(1e-6, 1e5))
def test_axis_ends_on_a_tick_past_the_last_stage(longest):
    """The common axis is at least as long as the longest fault, not twice as long, with two to seven ticks."""
    axis = common_axis([fault(5.0 + longest / 2, 5.0 + longest)])
    reach = max(time_s for _, time_s in reached(fault(5.0 + longest / 2, 5.0 + longest)))
    assert reach * (1 - 1e-6) <= axis.end_s <= 2 * reach
    assert 2 <= len(axis.ticks()) <= 7


def test_an_axis_without_faults_exists():
    """A fault that nothing ever noticed is still drawn, from its onset on."""
    drawn = timeline(fault(), common_axis([fault()]))
    assert "never observed" in drawn
    assert 'class="never"' in drawn


def test_stages_keep_their_order_and_durations():
    """Stages are told in seconds since onset; those not reached are absent."""
    assert reached(fault(5.5, 6.0, None, 8.0)) == [("observed", 0.5), ("alarmed", 1.0), ("isolated", 3.0)]


@pytest.mark.parametrize(
    ("value", "limit", "reach"),
    [(1.0, ">= 2", "43.48%"), (2.0, "<= 1", "86.96%"), (0.0, "== 0", "0%"), (-3.0, ">= 1", "0%")],
)
def test_bullet_shows_value_against_limit(value, limit, reach):
    """The bar is as long as the value, on a scale that holds value and limit."""
    drawn = bullet(measurement(value, limit))
    assert re.search(rf'width="{re.escape(reach)}"[^>]*class="value', drawn)


def test_heat_is_relative_to_the_usual():
    """A cell four times the median is hot and says so; a pair without traffic has no cell."""
    nics = ("a", "b", "c")
    cells = ((None, 1e-10, 1e-10), (1e-10, None, 4e-10), (1e-10, 1e-10, None))
    matrix = DelayMatrix("during", nics, cells)
    drawn = heatmap(matrix, usual([matrix]))
    assert drawn.count("M") == 5
    assert "b to c: 4.00 times the usual, 20 Gbit/s" in drawn
    assert "4.0" in drawn


def test_a_matrix_without_traffic_is_drawn_empty():
    """No traffic at all is a picture too."""
    matrix = DelayMatrix("idle", ("a",), ((None,),))
    assert "no traffic" in heatmap(matrix, usual([matrix]))


def test_headlines_put_misses_first_and_keep_the_worst():
    """Of measurements that share name and limit the worst stands for all; misses come first and are never cut."""
    held = [measurement(value, ">= 1", f"n{index}") for index in range(20) for value in (3.0, 2.0)]
    missed = [measurement(0.5, ">= 1", f"m{index}") for index in range(13)]
    top = headlines([*held, *missed])
    assert [head.measurement.name for head in top] == [f"m{index}" for index in range(13)]
    kept = headlines(held)
    assert len(kept) == 12
    assert all((head.measurement.value, head.shared_by) == (2.0, 2) for head in kept)


@given(st.floats(-1e6, 1e6), st.sampled_from([">=", "<=", "=="]), st.integers(-5, 5))
def test_margin_is_negative_exactly_for_a_miss(value, sign, bound):
    """The margin's sign says what the judge says."""
    one = measurement(value, f"{sign} {bound}")
    assert (margin(one) >= 0) == (one.outcome is Outcome.PASS)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.31, "s", "310 ms"),
        (0.0, "s", "0 s"),
        (1e10, "bit/s", "10 Gbit/s"),
        (float("nan"), "s", "no value"),
        (3.0, "1", "3"),
    ],
)
def test_values_are_written_for_people(value, unit, text):
    """A value is scaled to its size; a missing one says so."""
    assert format_value(measurement(value, "", unit=unit)) == text


def test_limits_and_scenarios_are_written_short():
    """A limit has its unit; a scenario is called by its test's name, from a test's id or an artefact's name."""
    assert format_limit(measurement(1.0, "<= 2", unit="s")) == "≤ 2 s"
    assert short("tests/a/test_b.py::test_c_d[8]") == short("tests-a-test_b.py-test_c_d[8]") == "c d[8]"


def test_growth_is_a_line_from_the_first_point_to_the_last():
    """Each point is drawn, cheaper ones lower, and the ends are written."""
    drawn = growth(Growth("plan", "flows", "seconds", ((100.0, 0.01), (1000.0, 0.1), (10000.0, 1.0))))
    assert drawn.count("<circle") == 3
    assert "0.01 at 100 flows" in drawn
    assert "10,000" in drawn


def test_losses_are_lines_over_tokens_that_fall_on_the_page():
    """Each method has a line; a lower loss is further down, more tokens are further right, and both axes have ticks."""
    curves = (LossCurve("data-parallel", ((0, 5.5), (120_000, 2.1))), LossCurve("DiLoCo", ((0, 5.5), (120_000, 2.2))))
    drawn = loss_plot(LossCurves(curves))
    lines = [[tuple(map(float, p.split(","))) for p in line.split()] for line in re.findall(r'points="([^"]+)"', drawn)]
    (first, second) = lines
    assert first[0] == second[0]
    assert first[0][0] < first[1][0]
    assert first[0][1] < second[1][1] < first[1][1]
    assert "data-parallel 2.100, DiLoCo 2.200" in drawn
    assert {"150 k", "50 k"} <= set(re.findall(r">([^<]+)</text>", drawn))


def test_bytes_of_links_are_dots_over_a_labelled_logarithmic_axis():
    """Ten times the bytes is as much further right at any size, over ticks of powers of ten; nothing is at the left."""
    sizes = (("a", 2e3), ("b", 2e4), ("c", 2e5), ("nothing", 0.0))
    drawn = byte_dots(LinkBytes(tuple(StepBytes("long link", name, value) for name, value in sizes)))
    one, two, three, none = map(float, re.findall(r'<circle[^>]* cx="([\d.]+)"', drawn))
    ticks = {text: float(x) for x, text in re.findall(r'<text x="([\d.]+)"[^>]*middle">([^<]+)</text>', drawn)}
    assert two - one == pytest.approx(three - two, abs=0.02)
    assert ticks["1 kB"] == none < one < ticks["10 kB"] < two < ticks["100 kB"] < three < ticks["1 MB"]
    assert "bytes of a step, both directions" in ticks
    assert "long link, b: 20 kB" in drawn


def test_an_ablation_has_a_bar_for_each_mode_in_the_order_of_adding():
    """The cells of a case come in the order of the modes, whatever order they were measured in."""
    cells = tuple(
        AblationCell(mode, "1:1", "healthy", 8, share, share, share) for mode, share in (("b", 0.9), ("a", 0.5))
    )
    ((case, ordered),) = cases(Ablation(("a", "b"), cells))
    assert case == "1:1, healthy, 8 jobs"
    assert [cell.mode for cell in ordered] == ["a", "b"]
    assert bars(case, ordered).count("<rect") == 2
