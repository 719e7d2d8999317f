"""Which NIC goes on for which, by the inventory."""

import pytest

from c4bench.attach.relay import twins
from c4bench.model.fabric import Nic


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        ([], ""),
        ([1e10], ""),
        ([1e10, 1e10], "d0=d1,d1=d0"),
        ([1e10, 1e10, 1e10], "d0=d1,d1=d2,d2=d0"),
        ([1e10, 2e10, 1e10], "d0=d2,d2=d0"),
    ],
)
def test_the_next_nic_of_the_same_rate_goes_on(rates, said):
    """By index, and after the last the first; one alone of its rate has none."""
    nics = [Nic("h", index, f"d{index}", f"n{index}", f"10.{index}.0.1", rate) for index, rate in enumerate(rates)]
    assert twins(nics[::-1]) == said
