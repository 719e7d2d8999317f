"""Tonight against the nights before."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from c4bench.errors import UsageError
from c4bench.model.measurement import Clock
from c4bench.record import Ledger, RunDirectory
from c4bench.record.provenance import Environment, collect
from c4bench.report.nights import compare, nights, prune, read
from c4bench.report.statistics import prediction_interval, student_quantile

STARTED = collect(name="", started_at="", command=(), seed=1, backend="softroce", topology="pair", clock="virtual")

LIMITS = {"s": {"at_most": 10.0}, "fraction": {"at_least": 0.1}, "exactly": {"equals": 1.0}}


def night(tmp_path, name, kernel="7.3.4", **figures):
    """A night with these figures: a time `s` below 10, a `fraction` above 0.1, `exactly` 1; others have no limit."""
    path = tmp_path / f"{name}-night"
    path.mkdir(parents=True)
    run = RunDirectory(path)
    run.write_provenance(replace(STARTED, environment=Environment(python="3.11.2", kernel=kernel)))
    ledger = Ledger(run, "c4d.slow_nic")
    for key, value in figures.items():
        unit = "s" if key in {"s", "duration"} else "B" if key == "size" else "1"
        limits = LIMITS.get(key, {})
        ledger.measure(key, value, unit, clock=Clock.MACHINE, rate=1e10, low=value * 0.987654321, **limits)
    return path


def series(tmp_path, values, key="s"):
    """As many nights, and the last of them apart."""
    paths = [night(tmp_path, f"2026{number:04}", **{key: value}) for number, value in enumerate(values)]
    found = [read(path) for path in paths]
    return compare(found[-1], found[:-1])


def noisy(count, level=1.0, seed=1):
    chance = random.Random(seed)
    return [level * (1 + chance.gauss(0, 0.02)) for _ in range(count)]


@pytest.mark.parametrize(
    ("key", "factor", "kind"),
    [
        ("s", 2, "worse"),
        ("s", 0.5, "better"),
        ("fraction", 0.5, "worse"),
        ("fraction", 2, "better"),
        ("exactly", 2, "worse"),
        ("exactly", 0.5, "worse"),
        ("duration", 2, "worse"),
        ("duration", 0.5, "better"),
        ("size", 2, "worse"),
        ("size", 0.5, "better"),
        ("n", 2, "changed"),
        ("n", 0.5, "changed"),
    ],
)
def test_a_step_is_told_with_its_direction_and_its_first_night(tmp_path, key, factor, kind):
    """What got worse is known from its limit, else its unit, and dated to the first night of the new level."""
    found = series(tmp_path, [*noisy(20), *noisy(6, factor, seed=2)], key)
    assert [(change.kind, change.since) for change in found.changes] == [(kind, "20260020-night")]
    assert found.changes[0].nights == 20
    assert "since 20260020-night" in str(found.changes[0])


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_news(tmp_path, seed):
    """Thirty nights of the same thing and one more."""
    assert series(tmp_path, noisy(31, seed=seed)).changes == ()


def test_one_bad_night_is_forgotten_when_it_is_over(tmp_path):
    """A figure that is as it was is not told of, whatever it was in between."""
    assert series(tmp_path, [*noisy(10), 9.0, *noisy(5, seed=3)]).changes == ()


def test_exact_figures_change_only_by_what_is_worth_telling(tmp_path):
    """On a virtual clock nights are the same to the byte: half a per cent is no news, two are."""
    assert series(tmp_path / "a", [1.0] * 5 + [1.005]).changes == ()
    assert [change.kind for change in series(tmp_path / "b", [1.0] * 5 + [1.02]).changes] == ["worse"]


def test_few_nights_say_nothing(tmp_path):
    """Two nights before have no interval worth the name."""
    found = series(tmp_path, [1.0, 1.0, 5.0])
    assert (found.compared, found.changes) == (0, ())


def test_a_slow_decline_is_held_against_the_baseline(tmp_path):
    """Nights that each are much like the ones before end far from the one that was accepted."""
    values = [1.0 + 0.02 * number for number in range(30)]
    found = [read(night(tmp_path, f"2026{number:04}", s=value)) for number, value in enumerate(values)]
    accepted = replace(found[0], name="accepted")
    near = [replace(one, figures=found[20 + number % 10].figures) for number, one in enumerate(found)]
    change = compare(near[-1], near[:-1], accepted).changes[0]
    assert (change.kind, change.against, change.since) == ("worse", "baseline", "accepted")


def test_figures_of_another_environment_are_not_compared(tmp_path):
    """A newer kernel's step is no news of the code: what differs is said, and its own nights are compared."""
    older = [read(night(tmp_path, f"2026{number:04}", kernel="6.1.192", s=1.0)) for number in range(5)]
    newer = [read(night(tmp_path, f"2027{number:04}", s=2.0)) for number in range(5)]
    first = compare(newer[0], older, older[0])
    assert (first.nights, first.compared, first.changes, first.lost) == (0, 0, (), ())
    assert first.apart == ("20260004-night and 4 more: kernel 6.1.192, now 7.3.4",)
    last = compare(newer[-1], [*older, *newer[:-1]], older[0])
    assert (last.nights, last.compared, last.changes) == (4, 1, ())


def test_what_was_not_measured_is_named(tmp_path):
    """A figure of last night that is missing tonight is a scenario that did not run."""
    last = read(night(tmp_path, "20260001", s=1.0, n=1.0))
    assert compare(read(night(tmp_path, "20260002", n=1.0)), [last]).lost == ("c4d.slow nic: s",)


def test_only_nights_are_pruned_and_the_baseline_stays(tmp_path):
    """The oldest nights go; runs of other kinds, and the one that is the baseline, stay whatever their age."""
    made = [night(tmp_path, f"2026{number:04}", s=1.0) for number in range(6)]
    (tmp_path / "20250101-main").mkdir()
    (tmp_path / "latest").symlink_to(made[-1].name)
    assert nights(tmp_path) == made
    assert prune(tmp_path, 2, [made[1]]) == [made[0], made[2], made[3]]
    with pytest.raises(UsageError):
        prune(tmp_path, 0, [])


@pytest.mark.parametrize(
    ("confidence", "freedom", "quantile"),
    [(0.95, 1, 12.706), (0.95, 2, 4.303), (0.99, 3, 5.841), (0.95, 10, 2.228), (0.99, 29, 2.756), (0.999, 30, 3.646)],
)
def test_students_quantiles_are_those_of_the_tables(confidence, freedom, quantile):
    """To the last digit that tables print."""
    assert student_quantile(confidence, freedom) == pytest.approx(quantile, abs=5e-4)


@given(st.integers(2, 40), st.integers(0, 10_000))
def test_one_more_value_falls_inside_about_as_often_as_promised(count, seed):
    """The interval holds its own mean, grows with the confidence, and shrinks to nothing without spread."""
    values = noisy(count, seed=seed)
    narrow, wide = (prediction_interval(values, confidence) for confidence in (0.9, 0.99))
    assert wide.low < narrow.low < narrow.mean < narrow.high < wide.high
    assert prediction_interval([2.0] * count, 0.99) == (2.0, 2.0, 2.0)


def test_nineteen_of_twenty_values_fall_inside_the_95_per_cent_interval():
    """Counted over two thousand draws of five nights and one more."""
    inside = 0
    for seed in range(2000):
        *past, value = noisy(6, seed=seed)
        expected = prediction_interval(past, 0.95)
        inside += expected.low <= value <= expected.high
    assert inside / 2000 == pytest.approx(0.95, abs=0.015)
