"""A NIC fails in the middle of a collective: every element is exact, and it costs a fraction of a second."""

import random
import statistics

import pytest

from c4bench.model.measurement import Clock
from c4bench.workload.trials import Trial

SIZE_BYTES = 128 << 10
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")


@pytest.mark.needs(hosts=8)
def test_first(start, several_nics, inject, measure):
    """Try."""
    import time
    ranks = start(several_nics)
    t = time.time()
    accounts = ranks(Trial("all_reduce", SIZE_BYTES, 0.2))
    print([(a.error, a.exact, a.checked) for a in accounts])
    print("healthy", accounts[0].resilience, [len(a.spans) for a in accounts], statistics.median(e - b for b, e in accounts[0].spans), [a.error for a in accounts])
    for name in ("nic.blackhole", "nic.down"):
        ranks.give(Trial("all_reduce", SIZE_BYTES, 1.5))
        g = time.time()
        with inject(name, host=several_nics[3].name, nic=0) as fault:
            print(name, "given", g, "onset", fault.onset_s - g, "observed", fault.observed_s - g)
            accounts = ranks.take()
        print("over", time.time() - g)
        for rank, a in enumerate(accounts):
            d = sorted(((e - b), b - fault.onset_s) for b, e in a.spans)
            print(rank, a.exact == a.checked, a.error, a.resilience, len(d), "median", statistics.median(x for x, _ in d), "longest", d[-3:])
