"""C4P on a fabric whose links are unequal and thinner than its NICs: the plan against the optimum of the same graph."""

import pytest

from c4bench.c4p.conditions import Conditions
from c4bench.c4p.evaluation.exact import least_worst_load
from c4bench.model.fabric import Flow
from c4bench.units import payload_bound
from c4bench.workload.jobs import job

# An operation is long beside its last acknowledgements, which take milliseconds through full queues.
SIZE_BYTES, STAGING_BYTES = 32 << 20, 8 << 20
ROUNDS = ("ecmp/4", "planned/4", "ecmp/4", "planned/4", "ecmp/4", "planned/4")


@pytest.mark.needs(hosts=8)
def test_thin_links_carry_what_they_can(cluster, rdma_hosts, atlas, switches, measure):
    """Four jobs across leaves, each over several QPs: the worst of them gets its share of what the links can carry."""
    if not switches.any:
        pytest.skip("no-switches: the inventory names no switches, whose ports' rates would be known")
    pairs = list(zip(rdma_hosts[:4], rdma_hosts[4:8], strict=True))
    optimum = optimum_share(pairs, atlas, switches.ports())
    if optimum > 0.99:
        pytest.skip("equal-links: the links of this fabric carry all that its NICs can send")
    jobs = [cluster.start(draws_job(number, pair)) for number, pair in enumerate(pairs)]
    results = [cluster.results(running, "draw", 60.0, each=len(ROUNDS)) for running in jobs]
    for running in jobs:
        cluster.stop(running.spec.id)
    bound = payload_bound(rdma_hosts[0].nics[0].rate_bps) * optimum
    worst = {paths: [] for paths in dict.fromkeys(ROUNDS)}
    for number, paths in enumerate(ROUNDS):
        took_s = [max(rank["took_s"] for rank in ranks if rank["number"] == number) for ranks in results]
        worst[paths].append(SIZE_BYTES * 8 / max(took_s) / bound)
    labels = {"jobs": 4, "state": "unequal links"}
    for paths, shares in worst.items():
        at_least = 0.98 if paths.startswith("planned") else None
        assert max(shares) < 1.01, "more than the optimum: the optimum is wrong"
        measure("c4p.optimum_fraction", min(shares), at_least=at_least, paths=paths, draws=len(shares), **labels)


def optimum_share(pairs, atlas, ports):
    """The part of its NIC's rate that each flow gets at best, divided over any paths, by linear programming."""
    capacities = {hop: ports[hop].rate_bps for hop in atlas.hops if hop in ports}
    capacities |= {nic.address: nic.rate_bps for pair in pairs for host in pair for nic in host.nics}
    flows = [
        Flow(f"{source.name}>{target.name}", "o", source.nics[0].name, target.nics[0].name, source.nics[0].rate_bps)
        for pair in pairs
        for source, target in (pair, pair[::-1])
    ]
    return min(1.0, 1 / least_worst_load(flows, atlas, Conditions(capacities), divisible=True))


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
