"""The traffic of others, from switch counters."""

import pytest

from c4bench.c4p.controller import BackgroundTraffic


def test_what_is_not_ours_is_others():
    """Own bytes, with their headers, are subtracted from a link's bytes; a small rest is noise."""
    found = BackgroundTraffic()
    found.add_own(("a", "b"), 4096 * 1000)
    assert found.rates_bps({"a": 4154 * 1000 + 4154 * 500, "b": 4154 * 1020, "c": 4154 * 250}, 0.5) == {
        "a": pytest.approx(4154 * 500 * 16),
        "c": pytest.approx(4154 * 250 * 16),
    }


def test_a_reading_begins_the_next():
    """Own bytes from before the last reading are not subtracted again."""
    found = BackgroundTraffic()
    found.add_own(("a",), 4096)
    found.rates_bps({"a": 4154}, 1.0)
    assert found.rates_bps({"a": 1000}, 1.0) == {"a": 8000.0}
