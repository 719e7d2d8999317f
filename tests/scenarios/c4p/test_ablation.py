"""What each part of path planning brings: one job or eight, all links up or one of a leaf's uplinks down.

The oversubscription is the topology's: run `pytest --hosts softroce --c4-topology TOPOLOGY` on this file with
`clos-2x8` and with `clos-2x8-2to1`. Cases are picked with `-k`.
"""

import contextlib
import time

import pytest

from c4bench.c4p.policy import PathPolicy
from c4bench.record.artefacts import Ablation, AblationCell
from c4bench.report.statistics import ratio_interval
from c4bench.units import payload_bound
from c4bench.workload.jobs import job, place

SIZE_BYTES = {1: 16 << 20, 8: 8 << 20}
OPERATIONS = 2
# Acknowledgements and grants come back through queues, too: enough may be on its way that no QP waits for them.
WINDOW = 16
STAGING_BYTES = 8 << 20
SETTLE_S = 2.5
PORTS = range(0xC001, 0xC001 + 24)
DRAWS = {"ECMP": 6, "ECMP, 4 QPs": 2, "ECMP, 8 QPs": 2, "ECMP, 16 QPs": 2, "pinned at random": 6}
MODES = {
    "ECMP": ("ecmp", None),
    "ECMP, 4 QPs": ("ecmp/4", None),
    "ECMP, 8 QPs": ("ecmp/8", None),
    "ECMP, 16 QPs": ("ecmp/16", None),
    "pinned at random": ("planned", PathPolicy(scope="random", dynamic=False)),
    "+ path plan": ("planned", PathPolicy(scope="job", dynamic=False)),
    "+ global plan": ("planned", PathPolicy(dynamic=False)),
    "+ dynamic": ("planned/4", PathPolicy()),
}
SLICE = {
    (8, "healthy"): ("ECMP", "+ path plan", "+ global plan"),
    (8, "uplink down"): ("ECMP", "+ global plan", "+ dynamic"),
}


def cells():
    """Every case under every mode, and before it a slice that answers sooner."""
    for jobs in (1, 8):
        for state in ("healthy", "uplink down"):
            name = f"{jobs}-{state.replace(' ', '-')}"
            if few := SLICE.get((jobs, state)):
                yield pytest.param(jobs, state, few, id=f"{name}-slice", marks=pytest.mark.nightly)
            yield pytest.param(jobs, state, tuple(MODES), id=name, marks=pytest.mark.nightly)


@pytest.mark.needs(hosts=16)
@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize(("jobs", "state", "modes"), list(cells()))
def test_ablation(cluster, rdma_hosts, inject, measure, save, pytestconfig, jobs, state, modes):
    """The worst job's share of the optimum, under each way of choosing paths, and what the full plan gains on ECMP."""
    hosts = rdma_hosts[:16]
    topology = pytestconfig.option.c4_topology
    ratio = 2 if topology.endswith("2to1") else 1
    rounds = [(mode, draw) for mode in modes for draw in range(DRAWS.get(mode, 1))]
    groups = [place(hosts)] if jobs == 1 else list(zip(hosts[:8], hosts[8:], strict=True))
    name = f"ablation-{jobs}-{state}-{len(rounds)}"
    running = [
        cluster.start(draws_job(name, number, group, jobs, [MODES[mode][0] for mode, _ in rounds]))
        for number, group in enumerate(groups)
    ]
    for number, (mode, _) in enumerate(rounds):
        policy = MODES[mode][1]
        cluster.meet(name, f"free{number}", 16, 17)
        if policy:
            cluster.plan_by(policy)
        cluster.meet(name, f"open{number}", 16, 17)
        with broken(inject, state):
            time.sleep(SETTLE_S if state != "healthy" else 0.0)
            cluster.meet(name, f"draw{number}", 16, 17)
            cluster.meet(name, f"end{number}", 16, 17)
    results = [cluster.results(one, "draw", 60.0, each=len(rounds)) for one in running]
    for one in running:
        cluster.stop(one.spec.id)
    cluster.plan_by(PathPolicy())

    optimum_bps = payload_bound(hosts[0].nics[0].rate_bps) / ratio * (1 if state == "healthy" else 7 / 8)
    found = {mode: [] for mode in modes}
    for number, (mode, _) in enumerate(rounds):
        found[mode].append(min(rate(of_job, number, jobs) for of_job in results) / optimum_bps)
    labels = {"topology": topology, "jobs": jobs, "oversubscription": f"{ratio}:1", "state": state}
    wanted = 0.98 if (ratio, state) == (1, "healthy") else 0.97
    table = []
    for mode, shares in found.items():
        mean = sum(shares) / len(shares)
        measure("c4p.optimum_fraction", mean, at_least=wanted if mode == modes[-1] else None, paths=mode, **labels)
        table.append(AblationCell(mode, f"{ratio}:1", state, jobs, mean, min(shares), max(shares)))
    save("ablation", Ablation(tuple(MODES), tuple(table)))
    # A plan is the same at every draw; hashing is what is drawn.
    best = found[modes[-1]] * DRAWS["ECMP"]
    gain = ratio_interval(best, found["ECMP"], seed=1)
    interval = {key: round(value, 4) for key, value in gain._asdict().items()}
    measure("c4p.gain_over_ecmp", gain.mean, at_least=1.0, paths=modes[-1], seeds=DRAWS["ECMP"], **interval, **labels)


@pytest.mark.nightly
@pytest.mark.needs(hosts=16)
@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
def test_step_time(cluster, rdma_hosts, measure, share):
    """What the plan makes of a training step, by the share of the step that communication takes at full rate."""
    cluster.plan_by(PathPolicy())
    pairs = list(zip(rdma_hosts[:8], rdma_hosts[8:16], strict=True))
    full_s = SIZE_BYTES[8] * 8 / payload_bound(rdma_hosts[0].nics[0].rate_bps)
    rounds = ["ecmp"] * DRAWS["ECMP"] + ["planned"]
    name = f"steps-{share}"
    running = [
        cluster.start(draws_job(name, number, pair, 8, rounds, size=16, compute_s=full_s * (1 - share) / share))
        for number, pair in enumerate(pairs)
    ]
    results = [cluster.results(one, "draw", 300.0, each=len(rounds)) for one in running]
    for one in running:
        cluster.stop(one.spec.id)
    rates = [min(rate(of_job, number, 8) for of_job in results) for number in range(len(rounds))]
    gain = ratio_interval([rates[-1]] * DRAWS["ECMP"], rates[:-1], seed=1)
    interval = {key: round(value, 4) for key, value in gain._asdict().items()}
    measure("c4p.step_time_gain", gain.mean, at_least=1.0, communication=share, jobs=8, **interval)


@contextlib.contextmanager
def broken(inject, state):
    """One of a leaf's uplinks is down meanwhile, unless all is to be well."""
    if state == "healthy":
        yield
        return
    with inject("link.down", at="leaf0/up3", lease_s=120.0):
        yield


def draws_job(name, number, group, jobs, rounds, size=17, **rest):
    """An all-reduce over these hosts, once a round."""
    return job(
        f"{name}-{number}".replace(" ", "-"),
        "draws",
        group,
        seed=1,
        size_bytes=SIZE_BYTES[jobs],
        operations=OPERATIONS,
        rounds=tuple(rounds),
        meeting=name,
        first_rank=len(group) * number,
        meeting_size=size,
        window=WINDOW,
        staging_bytes=STAGING_BYTES,
        **rest,
    )


def rate(results, number, jobs):
    """Bus bandwidth of a job in a round, by its slowest rank."""
    ranks = [result for result in results if result["number"] == number]
    took_s = max(rank["ended_s"] for rank in ranks) - min(rank["began_s"] for rank in ranks)
    return 2 * (len(ranks) - 1) / len(ranks) * SIZE_BYTES[jobs] * OPERATIONS * 8 / took_s
