"""A scenario of a stranger's: a frozen rank of a program of its own is named."""

import pytest

from c4bench import Component


@pytest.mark.needs(hosts=2)
def test_a_frozen_rank_is_named(cluster, hosts, inject, start, measure):
    """The detector that `--c4-detector` names says which rank it is."""
    job = start("acme.sums", hosts)
    with inject("acme.freeze", at=f"{job}:1@{hosts[1].name}") as fault:
        found = cluster.wait_diagnosis(job, timeout_s=10)
    assert found.component == Component("rank", f"{job}:1")
    measure("named_s", found.named_s - fault.onset_s, unit="s", at_most=1.0)
