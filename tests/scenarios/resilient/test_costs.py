"""The cost of resilience without faults and while a NIC is lost, and the time until the bandwidth is back."""

import time
from typing import NamedTuple

import msgspec
import pytest
from rates import default_split, durations

from c4bench.model.measurement import Clock
from c4bench.workload.trials import Trial

OPERATIONS = 6
# Arrays that are large enough for bandwidth to count, and no larger than a lab can carry.
SIZES_BYTES = {2: 512 << 10, 8: 16 << 20}


class Load(NamedTuple):
    """An all-reduce for hosts of this kind: its size, about how long it takes, and how messages are cut."""

    size_bytes: int
    seconds: float
    options: dict


def load(hosts):
    """What to measure these hosts with."""
    nics = hosts[0].nics
    size_bytes = SIZES_BYTES.get(len(nics), 4 << 20)
    seconds = 2 * size_bytes * 8 / sum(nic.rate_bps for nic in nics)
    return Load(
        size_bytes,
        seconds,
        {"chunk_bytes": 16 << 10, "window": 4} if nics[0].rate_bps < 1e9 else {"chunk_bytes": 0, "window": 8},
    )


@pytest.mark.needs(hosts=4)
def test_healthy_cost(start, several_nics, measure):
    """Without faults a resilient all-reduce takes no longer than a plain one."""
    what = load(several_nics)
    trial = Trial("all_reduce", what.size_bytes, seconds=OPERATIONS * what.seconds, fresh=True)
    plain_s = default_split(start(several_nics, resilient=False, **what.options)(trial))
    resilient_s = default_split(start(several_nics, **what.options)(trial))
    measure("resilient.healthy_cost", resilient_s / plain_s - 1, at_most=0.01, nics=len(several_nics[0].nics))


@pytest.mark.needs(hosts=4)
def test_degraded_and_back(cluster, start, several_nics, inject, measure):
    """With one NIC lost a host is as slow as the model predicts, and the bandwidth returns soon after the NIC does."""
    host, nics = several_nics[3 % len(several_nics)], len(several_nics[0].nics)
    what = load(several_nics)
    ranks = start(several_nics, **what.options)
    trial = Trial("all_reduce", what.size_bytes, seconds=OPERATIONS * what.seconds, fresh=True)
    healthy_s = default_split(ranks(trial))
    sparse = msgspec.structs.replace(trial, idle_s=0.02, fresh=False)
    sparse_s = default_split(
        ranks(msgspec.structs.replace(sparse, seconds=OPERATIONS * (what.seconds + sparse.idle_s)))
    )
    with inject("nic.down", host=host.name, nic=0) as fault:
        ranks(Trial("all_reduce", 128 << 10, seconds=0.15, idle_s=0.01))
        degraded_s = default_split(ranks(msgspec.structs.replace(trial, seconds=2 * trial.seconds, fresh=False)))
        ranks.give(msgspec.structs.replace(sparse, seconds=1.5))
    healed_s = time.time()
    accounts = ranks.take()
    model = 1 / (1 - 1 / nics)
    measure(
        "resilient.model_error",
        abs(degraded_s / healthy_s / model - 1),
        at_most=0.05,
        model="1/(1-X)",
        lost=f"1 of {nics}",
    )
    took = durations(accounts)
    slow = [number for number, each_s in enumerate(took) if each_s > sparse_s / 0.98]
    back_s = max(each.spans[slow[-1] if slow else 0][1] for each in accounts)
    assert slow[-1:] < [len(took) - 1], "the bandwidth never came back"
    labels = {"fraction": 0.98, "nics": nics, "plus_minus": ranks.clock_error_s}
    measure("resilient.failback_s", back_s - healed_s, unit="s", at_most=2.0, **labels)
    assert all(set(each.resilience.states) == {"up"} for each in accounts)
    said = [finding for each in accounts for finding in each.resilience.findings]
    right = sum(finding == (str(fault.target),) for finding in said)
    measure("resilient.localised_fraction", right / len(said), equals=1, clock=Clock.NONE, fault="nic.down")
    diagnosed = cluster.diagnoses(ranks.spec.id)
    assert {one.component for one in diagnosed} == {fault.target}
    measure("resilient.diagnoses", len(diagnosed), equals=1, clock=Clock.NONE, fault="nic.down")
    measure("resilient.repeated", sum(each.resilience.repeated for each in accounts), equals=0, clock=Clock.NONE)
