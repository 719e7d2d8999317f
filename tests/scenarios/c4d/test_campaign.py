"""Any fault, anywhere, at any time, on any traffic: C4D names its syndrome and its component."""

import itertools
import statistics
import time
from functools import partial

import msgspec
import pytest
from campaign import CATALOGUE, RECURRING, TRIALS, Verdict, concerned, least_right, once, place, same, trials

from c4bench.errors import InconclusiveError, UnhealthyError
from c4bench.model.diagnosis import Syndrome
from c4bench.model.measurement import Clock
from c4bench.record.artefacts import Campaign, CampaignTrial
from c4bench.report.statistics import share_interval
from c4bench.workload.jobs import traffic_job

READY_S = 60.0
BACK_S = 30.0
LEASE_S = 20.0
# A host that went away comes back when the lease ends.
AWAY_S = 6.0
# How long C4D has from the onset; more than what it promises, so that late is seen as late.
PATIENCE_S = {"hang": 3.0, "slow": 4.0}
RECURRING_S = 12.0
HUNG_S = 0.8
# So many operations beyond what is usual show that a fault touches the job.
TOUCHED_OPS = 3
# What more it would say about the same fault comes soon.
AFTERTHOUGHT_S = 0.5
SHARD = 25


@pytest.fixture
def attempt(
    cluster, rdma_hosts, inventory, ports, atlas, inject, clocks, run_directory, replayed  # noqa: ARG001 (planned paths)
):  # fmt: skip
    """Run one trial and say what came of it; None when the fault could not be brought about."""

    def run(trial):
        cluster.wait_hosts([host.name for host in rdma_hosts], BACK_S)
        job = traffic_job(
            trial.name, trial.traffic, rdma_hosts, seed=trial.draw, jitter=trial.jitter, profile=trial.profile
        )
        where = place(trial, job, rdma_hosts, inventory, ports)
        running = cluster.start(job)
        try:
            cluster.results(running, "ready", READY_S)
            time.sleep(trial.healthy_s)
            lease_s = AWAY_S if CATALOGUE[trial.fault].witness == "absence" else LEASE_S
            with inject(trial.fault, at=where, lease_s=lease_s, **trial.parameters) as fault:
                patience_s = PATIENCE_S[fault.syndrome.rpartition("_")[2]]
                patience_s = RECURRING_S if trial.fault in RECURRING else patience_s
                cluster.wait_diagnosis(job.id, fault.onset_s + patience_s - time.time())
                time.sleep(AFTERTHOUGHT_S)
                found, windows = cluster.diagnoses(job.id), ours(cluster.windows(job.id), clocks)
            again = replayed(job.id)
        finally:
            run_directory.save_telemetry(job.id, cluster.recording(job.id))
            cluster.stop(job.id)
        return judged(trial, where, fault, found, windows, ports)._replace(replayed=again)

    return run


def judged(trial, where, fault, found, windows, ports):
    """Hold what C4D said against the fault that was injected."""
    target, first = fault.target, found[0] if found else None
    ours = [d for d in found if any(same(c, target, ports) for c in (d.component, *d.alternatives))]
    right = ours[0] if ours else first
    # A finding with alternatives asks for probes; nobody isolates anything for it.
    sure = [d for d in found if d not in ours and not d.alternatives]
    healthy = [d for d in sure if not concerned(d.component, target, ports)]
    period_s, began_s, touched, hung = operations(windows, fault)
    # Where the fabric finds another way, what is left of the fault is slowness.
    syndromes = {fault.syndrome} if hung else {fault.syndrome, Syndrome.COMMUNICATION_SLOW}
    name_s = None if right is None else right.named_s - began_s
    return Verdict(
        trial.number,
        trial.fault,
        trial.traffic,
        where,
        trial.parameters,
        trial.jitter,
        trial.profile,
        f"{fault.syndrome}: {target}",
        [f"{d.syndrome}: {d.component}" + "".join(f" or {a}" for a in d.alternatives) for d in found],
        touched,
        bool(ours) and ours[0].syndrome in syndromes,
        bool(ours) and same(ours[0].component, target, ports),
        bool(ours),
        len(healthy),
        None if right is None else right.alarmed_s - began_s,
        name_s,
        None if right is None else name_s / period_s,
        period_s,
        fault.clock_error_s,
    )


def ours(windows, clocks):
    """What the hosts have told, with the ends of windows and the operations on our clock."""
    return [
        msgspec.structs.replace(
            window,
            end_s=clocks.ours(window.host, window.end_s),
            ops=tuple(
                msgspec.structs.replace(
                    op,
                    entered_s=clocks.ours(window.host, op.entered_s),
                    finished_s=op.finished_s and clocks.ours(window.host, op.finished_s),
                )
                for op in window.ops
            ),
        )
        for window in windows
    ]


def operations(windows, fault):
    """The job's period, when the fault first touched an operation, whether it touched several, and whether one hung."""
    ops = {(op.comm, op.rank, op.seq): op for window in windows for op in window.ops}.values()
    calls = sorted((op.comm, op.seq, op.entered_s, op.finished_s) for op in ops)
    healthy = [op for op in ops if op.finished_s and op.finished_s < fault.onset_s]
    entered = {}
    for comm, seq, entered_s, _ in calls:
        entered.setdefault(comm, {}).setdefault(seq, entered_s)
    gaps = [b - a for times in entered.values() for a, b in itertools.pairwise(times.values())]
    period_s = statistics.median(gaps)
    open_ops = [op for op in ops if not op.finished_s and op.entered_s > fault.onset_s - period_s]
    late = outlasting(healthy, [op for op in ops if op.finished_s > fault.onset_s])
    # Jitter makes some operations late in health, too: as many are no sign of anything.
    middle_s = statistics.median(op.finished_s for op in healthy)
    halves = [op for op in healthy if op.finished_s < middle_s], [op for op in healthy if op.finished_s >= middle_s]
    first = min((op.entered_s for op in [*open_ops, *late]), default=fault.observed_s)
    began_s = max(fault.observed_s, first) if fault.syndrome.endswith("hang") else fault.observed_s
    end_s = max(window.end_s for window in windows)
    hung = any(end_s - op.entered_s > HUNG_S for op in open_ops)
    return period_s, began_s, hung or number(late) > TOUCHED_OPS + number(outlasting(*halves)), hung


def outlasting(before, after):
    """Those of the operations after that took half as long again as any of the same rank before."""
    usual = {}
    for op in before:
        usual[op.comm, op.rank] = max(op.finished_s - op.entered_s, usual.get((op.comm, op.rank), 0.0))
    return [op for op in after if op.finished_s - op.entered_s > 1.5 * usual.get((op.comm, op.rank), float("inf"))]


def number(ops):
    """How many operations that is, whichever ranks saw them."""
    return len({(op.comm, op.seq) for op in ops})


@pytest.fixture
def campaign(attempt, run_directory):
    """Run trials, but those whose verdicts are in the run directory already, and return every verdict."""

    def run(trial):
        try:
            verdict = attempt(trial)
        except (InconclusiveError, UnhealthyError) as error:
            return {"trial": trial.number, "fault": trial.fault, "refused": str(error)}
        return verdict._asdict() | {"right": verdict.right}

    def verdicts(wanted):
        return once(run_directory.path / "campaign.jsonl", {trial.name: partial(run, trial) for trial in wanted})

    return verdicts


@pytest.mark.needs(hosts=8)
def test_campaign(campaign, judge, pytestconfig):
    """Of twenty-four faults drawn from the seed as many are named rightly as chance allows, and nothing healthy is."""
    judge(campaign(trials(pytestconfig.option.c4_seed, TRIALS)))


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
def test_promised_times(campaign, promises, pytestconfig):
    """Those twenty-four are named in time; those that the run directory has are not run again."""
    promises(campaign(trials(pytestconfig.option.c4_seed, TRIALS)))


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
@pytest.mark.parametrize("number", range(TRIALS))
def test_trial(number, campaign, pytestconfig):
    """One of the twenty-four alone, as `test_trial[7]`."""
    (verdict,) = campaign(trials(pytestconfig.option.c4_seed, TRIALS)[number : number + 1])
    said = [verdict.get(key) for key in ("right", "healthy", "replayed")]
    assert said == [True, 0, True], verdict


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
@pytest.mark.parametrize("shard", range(12))
def test_campaign_of_three_hundred(shard, campaign, judge, promises, pytestconfig):
    """A shard of three hundred trials, as many right, and in time; what the directory has is not run again."""
    verdicts = campaign(trials(pytestconfig.option.c4_seed + 1000, 12 * SHARD)[SHARD * shard : SHARD * (shard + 1)])
    judge(verdicts)
    promises(verdicts)


@pytest.fixture
def judge(measure, save):
    """Say how many were right, and show what was said of what."""

    def report(verdicts):
        tried = [v for v in verdicts if "refused" not in v]
        measure("campaign.trials", len(tried), equals=len(verdicts), clock=Clock.NONE)
        right, least = sum(v["right"] for v in tried), least_right(len(tried))
        share = share_interval(right, len(tried))
        bounds = {"low": round(share.low, 4), "high": round(share.high, 4)}
        limit = least / len(tried)
        measure("campaign.correct_fraction", share.mean, at_least=limit, clock=Clock.NONE, **bounds)
        measure("campaign.exact_fraction", fraction([v for v in tried if v["said"]], "exact"), clock=Clock.NONE)
        measure("campaign.replayed_fraction", fraction(tried, "replayed"), equals=1, clock=Clock.NONE)
        measure("campaign.healthy_isolated", sum(v["healthy"] for v in tried), at_most=0, clock=Clock.NONE)
        save("campaign", Campaign(tuple(map(shown, tried))))

    return report


@pytest.fixture
def promises(measure):
    """Say how soon those were named that were named rightly."""

    def report(verdicts):
        for verdict in verdicts:
            if verdict.get("right") and verdict["said"] and verdict["fault"] not in RECURRING:
                promised(verdict)

    def promised(verdict):
        place, period_s = {"fault": verdict["fault"], "trial": verdict["name"]}, verdict["period_s"]
        times = place | {"unit": "s", "plus_minus": verdict["clock_error_s"]}
        hang_s, name_s = max(1.0, 3 * period_s), max(2.0, 5 * period_s)
        if verdict["said"][0].partition(":")[0].endswith("hang"):
            measure("hang.alarm_s", verdict["alarm_s"], at_most=hang_s, **times)
            measure("hang.name_s", verdict["name_s"], at_most=hang_s + 1, **times)
        else:
            measure("slow.name_s", verdict["name_s"], at_most=name_s, **times)
            measure("slow.name_iterations", verdict["iterations"], clock=Clock.NONE, **place)

    return report


def fraction(verdicts, what):
    """How many of them are so."""
    return sum(v[what] for v in verdicts) / len(verdicts)


def shown(verdict):
    """A trial as the report has it."""
    said = [diagnosis.partition(": ") for diagnosis in verdict["said"]]
    words = {key: verdict[key] for key in ("fault", "place", "parameters", "traffic", "jitter", "profile")}
    return CampaignTrial(
        verdict["name"],
        kind(*verdict["expected"].partition(": ")[::2]),
        kind(said[0][0], said[0][2]) if said else "silence",
        verdict["right"],
        ", ".join(f"{key} {value}" for key, value in words.items()),
    )


def kind(syndrome, component):
    """`communication_slow, nic`."""
    return f"{syndrome}, {component.partition(' ')[0]}"
