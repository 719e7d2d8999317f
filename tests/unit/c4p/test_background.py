"""Traffic of others, told from counters."""

import pytest

from c4bench.c4p.knowledge.background_traffic import BackgroundTraffic


def test_what_is_not_ours_is_others():
    """Of a link's bytes ours are taken off, with their headers; what little is left over is noise."""
    found = BackgroundTraffic()
    found.add_own(("a", "b"), 4096 * 1000)
    assert found.rates_bps({"a": 4154 * 1000 + 4154 * 500, "b": 4154 * 1020, "c": 4154 * 250}, 0.5) == {
        "a": pytest.approx(4154 * 500 * 16),
        "c": pytest.approx(4154 * 250 * 16),
    }


def test_a_reading_begins_the_next():
    """What was ours before the last reading is not taken off again."""
    found = BackgroundTraffic()
    found.add_own(("a",), 4096)
    found.rates_bps({"a": 4154}, 1.0)
    assert found.rates_bps({"a": 1000}, 1.0) == {"a": 8000.0}
