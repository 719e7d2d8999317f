"""C4P on a fabric whose links are unequal and thinner than its NICs: the plan against the optimum of the same graph."""

import pytest
from drawn_jobs import draws_job, qps_of

from c4bench.report.statistics import mean_interval
from c4bench.units import payload_bound
from c4bench.wire.messages import Meeting

# An operation is long beside its last acknowledgements, which take milliseconds through full queues.
SIZE_BYTES, STAGING_BYTES = 32 << 20, 8 << 20
DRAWS = 8
# C4P chooses the number of QPs, and ECMP has as many. Of four QPs a connection has one or two on each thin link, whose
# windows do not fill it.
CHOSEN, ECMP, FEW = ROUNDS = ("planned/0", "ecmp/same", "planned/4")


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
def test_thin_links_carry_what_they_can(cluster, pairs_across, optimum_bps, of_optimum, switches, measure):
    """Four jobs across leaves, with the QPs that C4P chooses: the worst of them gets what the links can carry."""
    if not switches.any:
        pytest.skip("no-switches: the inventory names no switches, whose ports' rates would be known")
    pairs = pairs_across(4)
    best_bps = optimum_bps(pairs)
    if best_bps > 0.99 * min(payload_bound(host.nics[0].rate_bps) for pair in pairs for host in pair):
        pytest.skip("equal-links: the links of this fabric carry all that its NICs can send")
    sizes = {"size_bytes": SIZE_BYTES, "staging_bytes": STAGING_BYTES}
    meeting = Meeting("thin", 8)  # the jobs' ranks
    specs = [draws_job(meeting, number, pair, ROUNDS * DRAWS, **sizes) for number, pair in enumerate(pairs)]
    jobs = [cluster.start(spec) for spec in specs]
    results = [cluster.results(running, "draw", 60.0, each=DRAWS * len(ROUNDS)) for running in jobs]
    qps = {paths: qps_of(cluster, jobs, ROUNDS.index(paths)) for paths in (CHOSEN, FEW)}
    qps[ECMP] = qps[CHOSEN]
    for running in jobs:
        cluster.stop(running.spec.id)
    worst = {paths: [] for paths in ROUNDS}
    for number in range(DRAWS * len(ROUNDS)):
        took_s = [max(rank["took_s"] for rank in ranks if rank["number"] == number) for ranks in results]
        worst[ROUNDS[number % len(ROUNDS)]].append(of_optimum(SIZE_BYTES * 8 / max(took_s), best_bps))
    for paths, shares in worst.items():
        mean = mean_interval(shares)
        measure(
            "c4p.optimum_fraction",
            mean.mean,
            at_least=0.98 if paths == CHOSEN else None,
            draws=DRAWS,
            jobs=4,
            state="unequal links",
            paths=paths.partition("/")[0],
            qps=qps[paths],
            low=round(mean.low, 4),
            high=round(mean.high, 4),
            worst=round(min(shares), 4),
        )
