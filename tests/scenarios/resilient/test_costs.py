"""What resilience costs while all is well, what a lost NIC costs while it is lost, and how soon it is forgotten."""

import statistics
import time

import pytest

from c4bench.model.measurement import Clock
from c4bench.workload.trials import Trial

SIZE_BYTES = 512 << 10
OPERATIONS = 6


def durations(accounts):
    """How long each operation took: its slowest rank's time."""
    spans = [[ended - began for began, ended in each.spans] for each in accounts]
    return [max(took) for took in zip(*spans, strict=True)]


def usual(accounts):
    """The median operation, all exact and none failed."""
    assert [each.error for each in accounts if each.error] == []
    assert all(each.exact == each.checked for each in accounts)
    return statistics.median(durations(accounts)[1:])


@pytest.mark.needs(hosts=4)
def test_healthy_cost(start, several_nics, measure):
    """With all NICs well, an all-reduce takes no longer for being ready to lose one."""
    trial = Trial("all_reduce", SIZE_BYTES, seconds=OPERATIONS * 0.04, fresh=True)
    plain_s = usual(start(several_nics, resilient=False)(trial))
    resilient_s = usual(start(several_nics)(trial))
    measure("resilient.healthy_cost", resilient_s / plain_s - 1, at_most=0.01, nics=len(several_nics[0].nics))


@pytest.mark.needs(hosts=4)
def test_degraded_and_back(start, several_nics, inject, measure):
    """Without one of its NICs a host is as slow as the model says, and when it is back so is the bandwidth, soon."""
    host, nics = several_nics[3 % len(several_nics)], len(several_nics[0].nics)
    ranks = start(several_nics)
    healthy_s = usual(ranks(Trial("all_reduce", SIZE_BYTES, seconds=OPERATIONS * 0.04, fresh=True)))
    with inject("nic.down", host=host.name, nic=0):
        ranks(Trial("all_reduce", 64 << 10, seconds=0.1))
        degraded_s = usual(ranks(Trial("all_reduce", SIZE_BYTES, seconds=OPERATIONS * 0.08)))
        ranks.give(Trial("all_reduce", SIZE_BYTES, seconds=1.5))
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
    slow = [number for number, each_s in enumerate(took) if each_s > healthy_s / 0.98]
    back_s = max(each.spans[slow[-1] if slow else 0][1] for each in accounts)
    assert slow[-1:] < [len(took) - 1], "the bandwidth never came back"
    measure("resilient.failback_s", back_s - healed_s, unit="s", at_most=2.0, fraction=0.98, nics=nics)
    assert all(set(each.resilience.states) == {"up"} for each in accounts)
    measure("resilient.repeated", sum(each.resilience.repeated for each in accounts), equals=0, clock=Clock.NONE)
