"""C4P and ECMP in turn, on the same fabric and in the same run."""

import pytest
from drawn_jobs import draws_job, qps_of
from fabric_drawing import drawn

from c4bench.control.paths.switches import carried_bytes
from c4bench.record.artefacts import LinkLoads, LoadCase
from c4bench.report.statistics import ratio_interval
from c4bench.wire.messages import Meeting

SIZE_BYTES = 4 << 20
OPERATIONS = 2
# C4P chooses the number of QPs, and ECMP has as many, and one.
PLANNED, SAME, ONE = ROUNDS = ("planned/0", "ecmp/same", "ecmp")


@pytest.mark.needs(hosts=8)
@pytest.mark.parametrize("draws", [8, pytest.param(20, marks=pytest.mark.nightly)])
def test_plan_beats_ecmp(
    draws, cluster, rdma_hosts, atlas, pairs_across, contended, optimum_bps, of_optimum, switches, measure, save
):
    """Four jobs across the fabric get its full bandwidth with the plan, and less with ECMP over as many QPs."""
    pairs = pairs_across(4)
    contended(pairs)
    sizes = {"size_bytes": SIZE_BYTES, "operations": OPERATIONS, "warm_up_bytes": SIZE_BYTES}
    # The jobs' eight ranks, and the test, which reads the switches' counters in between.
    meeting = Meeting(f"campaign{draws}", 9)
    specs = [draws_job(meeting, number, pair, ROUNDS * draws, **sizes) for number, pair in enumerate(pairs)]
    jobs = [cluster.start(spec) for spec in specs]
    readings = [switches.ports()]
    for number in range(len(ROUNDS) * draws):
        for moment in ("free", "open", "draw", "end"):
            cluster.meet(meeting.name, f"{moment}{number}")
        readings.append(switches.ports())
    results = [cluster.results(running, "draw", 60.0, each=len(ROUNDS) * draws) for running in jobs]
    qps = qps_of(cluster, jobs, ROUNDS.index(PLANNED))
    for running in jobs:
        cluster.stop(running.spec.id)

    rates = {paths: by_draw(results, start) for start, paths in enumerate(ROUNDS)}
    worst = of_optimum(min(min(draw) for draw in rates[PLANNED]), optimum_bps(pairs))
    measure("c4p.plan_fraction", worst, at_least=0.97, jobs=4, draws=draws, qps=qps)
    means = {paths: [sum(draw) / len(draw) for draw in draws] for paths, draws in rates.items()}
    for label, baseline in (("same", SAME), ("1", ONE)):
        gain = ratio_interval(means[PLANNED], means[baseline], seed=1)
        interval = {key: round(value, 4) for key, value in gain._asdict().items()}
        measure("c4p.gain_over_ecmp", gain.mean, at_least=1.0, qps=label, seeds=draws, **interval)
        assert gain.low > 1.0, f"the plan's gain over ECMP with {label} QPs is within the noise of the draws"
    if switches.any:
        save("fabric", drawn(rdma_hosts, atlas, readings[0]))
        by_paths = {paths: loads(readings, start) for start, paths in enumerate(ROUNDS)}
        for paths in ROUNDS:
            measure("c4p.busiest_link", busiest(typical(by_paths[paths])), paths=paths, draws=draws)
        cases = LoadCase("ECMP", typical(by_paths[SAME])), LoadCase("C4P", typical(by_paths[PLANNED]))
        save("link_loads", LinkLoads(cases))


def loads(readings, start):
    """Each link's load in every third draw, from its first operation on: 1 is what one NIC sends, 2 is two of them."""
    sent = SIZE_BYTES * (OPERATIONS + 1) * 4154 / 4096
    ends = range(start, len(readings) - 1, len(ROUNDS))
    carried = (carried_bytes(readings[draw], readings[draw + 1]) for draw in ends)
    return [{hop: round(count / sent, 3) for hop, count in of_draw.items()} for of_draw in carried]


def typical(draws):
    """The draw whose busiest link is the median of all."""
    return sorted(draws, key=busiest)[len(draws) // 2]


def busiest(of_draw):
    """The load of the busiest link."""
    return max(of_draw.values())


def by_draw(results, start):
    """Bus bandwidth of every job in every third draw: for two ranks, bits over the slower rank's time."""
    rates_bps = {}
    for job_results in results:
        took_s = {}
        for result in job_results:
            if result["number"] % len(ROUNDS) == start:
                took_s.setdefault(result["number"], []).append(result["took_s"])
        for number, ranks in took_s.items():
            rates_bps.setdefault(number, []).append(SIZE_BYTES * 8 * OPERATIONS / max(ranks))
    return [rates_bps[number] for number in sorted(rates_bps)]
