"""Measure what each part of path planning gains, with one job or one per pair of hosts, with or without an uplink down.

The topology sets the oversubscription, so `make ablation` runs two topologies, each into its run directory. Cases that
are in the run directory's `ablation.jsonl` are not run again. Select cases with `-k`.
"""

import contextlib
import json
import time

import msgspec
import pytest
from drawn_jobs import draws_job

from c4bench.c4p.policy import PathPolicy
from c4bench.record.artefacts import Ablation, AblationCell
from c4bench.report.statistics import ratio_interval
from c4bench.units import payload_bound
from c4bench.wire.messages import Meeting

# An operation ends with its last acknowledgements, which take milliseconds through full queues; these sizes take much
# longer. The data of a single job passes every rank, so that a smaller size takes as long.
ONE_BYTES, PAIR_BYTES = 16 << 20, 32 << 20
STEP_BYTES = 8 << 20
STAGING_BYTES = 8 << 20
SETTLE_S, OPEN_S = 2.5, 60.0
# A plan is the same in every draw, but the paths of acknowledgements are hashed.
DRAWS = {
    "ECMP": 20,
    "ECMP, as many QPs": 20,
    "ECMP, 8 QPs": 6,
    "ECMP, 16 QPs": 6,
    "pinned at random": 4,
    "+ global plan": 4,
    "+ dynamic": 4,
}
# C4P chooses the number of QPs, and ECMP has as many: modes run from the last to the first.
MODES = {
    "ECMP": ("ecmp", None),
    "ECMP, as many QPs": ("ecmp/same", None),
    "ECMP, 8 QPs": ("ecmp/8", None),
    "ECMP, 16 QPs": ("ecmp/16", None),
    "pinned at random": ("planned", PathPolicy(scope="random", dynamic=False)),
    "+ path plan": ("planned/0", PathPolicy(scope="job", dynamic=False)),
    "+ global plan": ("planned/0", PathPolicy(dynamic=False)),
    "+ dynamic": ("planned/0", PathPolicy()),
}
BRIEF = {"ECMP": 2, "ECMP, as many QPs": 2, "+ global plan": 1, "+ dynamic": 1}


@pytest.mark.nightly
@pytest.mark.needs(hosts=16)
@pytest.mark.parametrize("state", ["healthy", "uplink down"])
@pytest.mark.parametrize("jobs", [1, 8])
def test_ablation(pairs_across, attempt, judge, jobs, state):
    """The worst job's share of the optimum in each mode of choosing paths, and the full plan's gain over ECMP."""
    judge(attempt(pairs_across(8), jobs, state, {mode: DRAWS.get(mode, 1) for mode in MODES}))


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
@pytest.mark.parametrize("state", ["healthy", "uplink down"])
def test_slice(pairs_across, attempt, judge, state):
    """Four jobs, with all uplinks or without one: the worst gets nearly the optimum by the plan, and less by ECMP."""
    judge(attempt(pairs_across(4), 4, state, BRIEF))


class Case(msgspec.Struct, frozen=True):
    """The result of a case: by mode, the worst job's share of the optimum in each draw."""

    topology: str
    jobs: int
    state: str
    found: dict[str, list[float]]

    @property
    def oversubscription(self):
        """The bandwidth of a leaf's hosts over that of its uplinks."""
        return f"{2 if self.topology.endswith('2to1') else 1}:1"


@pytest.fixture
def attempt(shares, pytestconfig, run_directory):
    """Run a case unless the run directory has it; return all its cases, this one last."""
    path = run_directory.path / "ablation.jsonl"

    def run(pairs, jobs, state, modes):
        topology = pytestconfig.option.c4_topology
        lines = path.read_text().splitlines() if path.exists() else []
        known = [msgspec.convert(json.loads(line), Case) for line in lines]
        mine = [case for case in known if (case.topology, case.jobs, case.state) == (topology, jobs, state)]
        if not mine:
            mine = [Case(topology, jobs, state, shares(pairs, jobs, state, modes))]
            with path.open("ab") as file:
                file.write(msgspec.json.encode(mine[0]) + b"\n")
        return [case for case in known if case not in mine] + mine

    return run


@pytest.fixture
def shares(cluster, inject, uplink, optimum_bps, of_optimum):
    """By mode, the worst job's share of the optimum in each draw; all jobs run at the same time, draw after draw."""

    def measured(pairs, jobs, state, modes):
        rounds = [mode for mode, draws in reversed(modes.items()) for _ in range(draws)]
        hosts = [host for pair in pairs for host in pair]
        port, hops = uplink(pairs, left=2) if state == "uplink down" else (None, frozenset())
        groups, size_bytes = ([hosts], ONE_BYTES) if jobs == 1 else (pairs, PAIR_BYTES)
        name = f"ablation-{jobs}-{state}"
        meeting, ways = Meeting(name, len(hosts) + 1), [MODES[mode][0] for mode in rounds]
        sizes = {"size_bytes": size_bytes, "staging_bytes": STAGING_BYTES}
        specs = [draws_job(meeting, number, group, ways, **sizes) for number, group in enumerate(groups)]
        running = [cluster.start(spec) for spec in specs]
        for number, mode in enumerate(rounds):
            draw(cluster, name, number, MODES[mode][1], inject_down(inject, port))
        results = [cluster.results(one, "draw", 60.0, each=len(rounds)) for one in running]
        for one in running:
            cluster.stop(one.spec.id)
        cluster.plan_by(PathPolicy())
        # What follows begins on a fabric whose links are all in use again.
        cluster.wait_links(OPEN_S)
        # A single job is a ring of all hosts, which sends in one direction.
        flows = list(zip(hosts, [*hosts[1:], hosts[0]], strict=True)) if jobs == 1 else pairs
        best_bps = optimum_bps(flows, hops, both_ways=jobs > 1)
        found = {mode: [] for mode in modes}
        for number, mode in enumerate(rounds):
            worst_bps = min(rate(of_job, number, size_bytes) for of_job in results)
            found[mode].append(of_optimum(worst_bps, best_bps))
        return found

    return measured


def draw(cluster, name, number, policy, fault):
    """Let the jobs open, time and close the connections of one round, by this policy and during this fault."""
    cluster.meet(name, f"free{number}")
    if policy:
        cluster.plan_by(policy)
    cluster.meet(name, f"open{number}")
    with fault as applied:
        time.sleep(SETTLE_S if applied else 0.0)
        cluster.meet(name, f"draw{number}")
        cluster.meet(name, f"end{number}")


def inject_down(inject, port):
    """The failure of this port's link, unless it is None."""
    return inject("link.down", at=port, lease_s=120.0) if port else contextlib.nullcontext()


@pytest.fixture
def judge(measure, run_directory):
    """Record the measurements of the last of these cases, and save all of them for the chart."""

    def report(cases):
        case = cases[-1]
        ratio, state = case.oversubscription, case.state
        labels = {"topology": case.topology, "jobs": case.jobs, "oversubscription": ratio, "state": state}
        wanted = 0.98 if (ratio, state) == ("1:1", "healthy") else 0.97
        *_, best = case.found
        for mode, of_draws in case.found.items():
            mean = sum(of_draws) / len(of_draws)
            measure("c4p.optimum_fraction", mean, at_least=wanted if mode == best else None, paths=mode, **labels)
        for qps, mode in (("same", "ECMP, as many QPs"), ("1", "ECMP")):
            drawn, planned = case.found[mode], case.found[best]
            gain = ratio_interval(planned * (len(drawn) // len(planned)), drawn, seed=1)
            interval = {key: round(value, 4) for key, value in gain._asdict().items()}
            seeds = {"qps": qps, "seeds": len(drawn)}
            measure("c4p.gain_over_ecmp", gain.mean, at_least=1.0, paths=best, **seeds, **interval, **labels)
        # One artefact for the run directory: topologies run one after the other, in scenarios with the same names.
        run_directory.save("ablation", Ablation(tuple(MODES), tuple(cells(cases))))

    return report


def cells(cases):
    """A cell for every bar of the report's chart."""
    for case in cases:
        for mode, of_draws in case.found.items():
            mean = sum(of_draws) / len(of_draws)
            yield AblationCell(mode, case.oversubscription, case.state, case.jobs, mean, min(of_draws), max(of_draws))


@pytest.mark.nightly
@pytest.mark.needs(hosts=16)
@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
def test_step_time(cluster, pairs_across, measure, share):
    """The plan shortens a training step, for each share of the step that is communication at full rate."""
    cluster.plan_by(PathPolicy())
    pairs = pairs_across(8)
    full_s = STEP_BYTES * 8 / payload_bound(pairs[0][0].nics[0].rate_bps)
    rounds = ["ecmp"] * 6 + ["planned/0"]
    name = f"steps-{share}"
    step = {"size_bytes": STEP_BYTES, "staging_bytes": STAGING_BYTES, "compute_s": full_s / share - full_s}
    specs = [draws_job(Meeting(name, 16), number, pair, rounds, **step) for number, pair in enumerate(pairs)]
    running = [cluster.start(spec) for spec in specs]
    results = [cluster.results(one, "draw", 300.0, each=len(rounds)) for one in running]
    for one in running:
        cluster.stop(one.spec.id)
    rates = [min(rate(of_job, number, STEP_BYTES) for of_job in results) for number in range(len(rounds))]
    gain = ratio_interval(rates[-1:] * len(rates[:-1]), rates[:-1], seed=1)
    interval = {key: round(value, 4) for key, value in gain._asdict().items()}
    measure("c4p.step_time_gain", gain.mean, at_least=1.0, communication=share, jobs=8, **interval)


def rate(results, number, size_bytes):
    """Bus bandwidth of a job in a round, by its slowest rank."""
    ranks = [result for result in results if result["number"] == number]
    took_s = max(rank["took_s"] for rank in ranks)
    return 2 * (len(ranks) - 1) / len(ranks) * size_bytes * 8 / took_s
