"""C4P on a fabric whose links are unequal and thinner than its NICs: the plan against the optimum of the same graph."""

import pytest

from c4bench.units import payload_bound
from c4bench.workload.jobs import job

# An operation is long beside its last acknowledgements, which take milliseconds through full queues.
SIZE_BYTES, STAGING_BYTES = 32 << 20, 8 << 20
ROUNDS = ("ecmp/4", "planned/4", "ecmp/4", "planned/4", "ecmp/4", "planned/4")


@pytest.mark.needs(hosts=8)
def test_thin_links_carry_what_they_can(cluster, pairs_across, optimum_bps, of_optimum, switches, measure):
    """Four jobs across leaves, each over several QPs: the worst of them gets its share of what the links can carry."""
    if not switches.any:
        pytest.skip("no-switches: the inventory names no switches, whose ports' rates would be known")
    pairs = pairs_across(4)
    best_bps = optimum_bps(pairs)
    if best_bps > 0.99 * min(payload_bound(host.nics[0].rate_bps) for pair in pairs for host in pair):
        pytest.skip("equal-links: the links of this fabric carry all that its NICs can send")
    jobs = [cluster.start(draws_job(number, pair)) for number, pair in enumerate(pairs)]
    results = [cluster.results(running, "draw", 60.0, each=len(ROUNDS)) for running in jobs]
    for running in jobs:
        cluster.stop(running.spec.id)
    worst = {paths: [] for paths in dict.fromkeys(ROUNDS)}
    for number, paths in enumerate(ROUNDS):
        took_s = [max(rank["took_s"] for rank in ranks if rank["number"] == number) for ranks in results]
        worst[paths].append(of_optimum(SIZE_BYTES * 8 / max(took_s), best_bps))
    labels = {"jobs": 4, "state": "unequal links"}
    for paths, shares in worst.items():
        at_least = 0.98 if paths.startswith("planned") else None
        measure("c4p.optimum_fraction", min(shares), at_least=at_least, paths=paths, draws=len(shares), **labels)


def draws_job(number, pair):
    """An all-reduce between two hosts, with ECMP and planned in turn."""
    return job(
        f"thin{number}",
        "draws",
        pair,
        seed=1,
        size_bytes=SIZE_BYTES,
        staging_bytes=STAGING_BYTES,
        rounds=ROUNDS,
        meeting="thin",
        first_rank=2 * number,
        meeting_size=8,
    )
