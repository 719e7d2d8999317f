"""The downtime table is arithmetic on rates and stage times."""

import pytest

from c4bench.cost.downtime import ROWS, FaultRates, Stages, downtime_table

_MONTH_S = 30 * 86400


def test_a_fault_a_day_costs_its_stages():
    """Thirty faults a month, each with an hour's diagnosis, are 1/24 of it; half a checkpoint is lost each time."""
    before = Stages(600, 3600, 60, 7200)
    table = {row.name: row for row in downtime_table({"nic": FaultRates(30, before, Stages(1, 2, 10, 600))})}
    assert table["diagnosis_isolation"].before == pytest.approx(1 / 24)
    assert table["post_checkpoint"].before == pytest.approx(30 * 3600 / _MONTH_S)
    assert table["detection"].after == pytest.approx(30 / _MONTH_S)
    assert table["total"].before == pytest.approx(30 * (600 + 3600 + 60 + 3600) / _MONTH_S)


def test_kinds_add_up_and_may_stay_as_they_were():
    """A kind of fault without stages `after` costs as much as before."""
    stages = Stages(1, 2, 3, 8)
    rows = downtime_table({"a": FaultRates(1, stages), "b": FaultRates(2, stages, Stages(0, 0, 0, 0))})
    assert [row.name for row in rows] == [*ROWS, "total"]
    assert rows[-1].before == pytest.approx(3 * 10 / _MONTH_S)
    assert rows[-1].after == pytest.approx(10 / _MONTH_S)


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
def test_impossible_rate_is_refused(rate):
    """A rate below zero or that is no number is named with its kind."""
    with pytest.raises(ValueError, match="gpu"):
        downtime_table({"gpu": FaultRates(rate, Stages(1, 1, 1, 1))})


def test_more_than_a_month_is_refused():
    """Faults that take more time than there is show a mistake in the input."""
    with pytest.raises(ValueError, match="of the month"):
        downtime_table({"gpu": FaultRates(1000, Stages(1e6, 1, 1, 1))})
