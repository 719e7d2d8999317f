"""The scenario of docs/tutorial.md: a NIC becomes slow under a running job."""

import pytest


@pytest.mark.needs(hosts=8)
def test_slow_nic_is_named(job, inject, c4d, measure):  # noqa: ARG001  (the job is what the fault slows)
    """A NIC that receives at a quarter of its rate is named within two seconds."""
    measure("c4d.baseline_s", c4d.learn_baseline(), unit="s")
    with inject("nic.rate", host="h5", nic=0, direction="rx", fraction=0.25) as fault:
        found = c4d.wait(timeout_s=10)
    assert found.component == fault.target
    measure("c4d.name_s", found.named_s - fault.observed_s, unit="s", at_most=2.0)
