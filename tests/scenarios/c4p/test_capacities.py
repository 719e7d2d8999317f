"""C4P on a fabric whose links are unequal and thinner than its NICs: the plan against the optimum of the same graph."""

import msgspec
import pytest

from c4bench.model.meeting import Meeting
from c4bench.report.statistics import mean_interval
from c4bench.units import payload_bound
from c4bench.workload.jobs import job

# An operation is long beside its last acknowledgements, which take milliseconds through full queues.
SIZE_BYTES, STAGING_BYTES = 32 << 20, 8 << 20
# A connection that is divided among thin links has one or two of four QPs on each, whose windows do not fill it.
ECMP, FEW, ENOUGH = PATHS = ("ecmp/8", "planned/4", "planned/8")
DRAWS = 8


@pytest.mark.needs(hosts=8)
def test_thin_links_carry_what_they_can(cluster, pairs_across, optimum_bps, of_optimum, switches, measure):
    """Four jobs across leaves, each over eight QPs: on average the worst of them gets what the links can carry."""
    if not switches.any:
        pytest.skip("no-switches: the inventory names no switches, whose ports' rates would be known")
    pairs = pairs_across(4)
    best_bps = optimum_bps(pairs)
    if best_bps > 0.99 * min(payload_bound(host.nics[0].rate_bps) for pair in pairs for host in pair):
        pytest.skip("equal-links: the links of this fabric carry all that its NICs can send")
    jobs = [cluster.start(draws_job(number, pair)) for number, pair in enumerate(pairs)]
    results = [cluster.results(running, "draw", 60.0, each=DRAWS * len(PATHS)) for running in jobs]
    for running in jobs:
        cluster.stop(running.spec.id)
    worst = {paths: [] for paths in PATHS}
    for number in range(DRAWS * len(PATHS)):
        took_s = [max(rank["took_s"] for rank in ranks if rank["number"] == number) for ranks in results]
        worst[PATHS[number % len(PATHS)]].append(of_optimum(SIZE_BYTES * 8 / max(took_s), best_bps))
    for paths, shares in worst.items():
        mean = mean_interval(shares)
        measure(
            "c4p.optimum_fraction",
            mean.mean,
            at_least=0.98 if paths == ENOUGH else None,
            draws=DRAWS,
            jobs=4,
            state="unequal links",
            paths=paths,
            low=round(mean.low, 4),
            high=round(mean.high, 4),
            worst=round(min(shares), 4),
        )


def draws_job(number, pair):
    """An all-reduce between two hosts, with ECMP and planned in turn."""
    spec = job(
        f"thin{number}",
        "draws",
        pair,
        seed=1,
        size_bytes=SIZE_BYTES,
        staging_bytes=STAGING_BYTES,
        rounds=PATHS * DRAWS,
    )
    return msgspec.structs.replace(spec, meeting=Meeting("thin", 8))
