"""Any fault, anywhere, at any time, on any traffic: C4D names its syndrome and its component."""

import time
from functools import partial

import pytest
from campaign import CATALOGUE, RECURRING, SLICE, TRIALS, least_right, once, place, trials
from trial_verdict import asked, graded, judged, ours, shares

from c4bench.errors import InconclusiveError, UnhealthyError
from c4bench.model.event import Diagnosed
from c4bench.model.measurement import Clock
from c4bench.record.artefacts import Campaign, CampaignTrial
from c4bench.workload.jobs import traffic_job
from tools.campaign.figures import calibration, calibration_error, figures
from tools.shares import share_interval

READY_S = 60.0
LEASE_S = 20.0
# A host that went away comes back when the lease ends.
AWAY_S = 6.0
# How long C4D has from the onset; more than what it promises, so that late is seen as late.
PATIENCE_S = {"hang": 3.0, "slow": 4.0}
RECURRING_S = 12.0
# What unseen seeds are to reach, and by how much stated confidence may differ from the share that is right.
TARGETS = {"resolved": {"at_least": 0.95}, "among": {"at_least": 0.99}, "wrong": {"at_most": 0.003}}
CALIBRATED = 0.03
# The share of a NIC's rate that asking may take.
POLITE = 0.005
# What more it would say about the same fault comes soon.
AFTERTHOUGHT_S = 0.5
SHARD = 25


def is_sure(job, event):
    """Whether an event is a diagnosis of the job that names a component without alternatives."""
    return isinstance(event, Diagnosed) and event.diagnosis.job == job and not event.diagnosis.alternatives


@pytest.fixture
def attempt(
    cluster, rdma_hosts, inventory, ports, fabric, atlas, inject, clocks, run_directory, replayed, as_at_first,  # noqa: ARG001
    possible_faults, directed,
):  # fmt: skip
    """Run one trial and say what came of it; None when the fault could not be brought about."""

    def run(trial):
        as_at_first([host.name for host in rdma_hosts])
        job = traffic_job(
            trial.name, trial.traffic, rdma_hosts, seed=trial.draw, jitter=trial.jitter, profile=trial.profile
        )
        where = place(trial, job, rdma_hosts, inventory, ports, possible_faults)
        trial = directed(trial, where)
        running = cluster.start(job)
        try:
            cluster.results(running, "ready", READY_S)
            time.sleep(trial.healthy_s)
            lease_s = AWAY_S if CATALOGUE[trial.fault].witness == "absence" else LEASE_S
            with inject(trial.fault, at=where, lease_s=lease_s, **trial.parameters) as fault:
                patience_s = PATIENCE_S[fault.syndrome.rpartition("_")[2]]
                patience_s = RECURRING_S if trial.fault in RECURRING else patience_s
                cluster.wait_event(partial(is_sure, job.id), fault.onset_s + patience_s - time.time())
                time.sleep(AFTERTHOUGHT_S)
                found, windows = cluster.diagnoses(job.id), ours(cluster.windows(job.id), clocks)
                until_s = time.time()
                packets, load_fraction = asked(cluster.recording(job.id))
            again = replayed(job.id)
        finally:
            run_directory.save_telemetry(job.id, cluster.recording(job.id))
            cluster.stop(job.id)
        verdict = judged(trial, where, fault, (found, until_s), windows, ports, fabric)
        return verdict._replace(replayed=again, packets=packets, load_fraction=load_fraction)

    return run


@pytest.fixture
def campaign(attempt, run_directory):
    """Run trials, but those whose verdicts are in the run directory already, and return every verdict."""

    def run(trial):
        try:
            verdict = attempt(trial)
        except (InconclusiveError, UnhealthyError, pytest.skip.Exception) as error:
            return {"trial": trial.number, "fault": trial.fault, "refused": str(error)}
        return verdict.line

    def verdicts(wanted):
        return once(run_directory.path / "campaign.jsonl", {trial.name: partial(run, trial) for trial in wanted})

    return verdicts


@pytest.mark.needs(hosts=8)
def test_campaign(campaign, judge, drawable, pytestconfig):
    """Of four faults drawn from the seed as many are named rightly as chance allows, and nothing healthy is."""
    judge(campaign(trials(pytestconfig.option.c4_seed, TRIALS, drawable)[:SLICE]))


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
def test_whole_campaign(campaign, judge, drawable, pytestconfig):
    """Of twenty-four likewise, of which those are the first; those that the run directory has are not run again."""
    judge(campaign(trials(pytestconfig.option.c4_seed, TRIALS, drawable)))


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
def test_promised_times(campaign, promises, drawable, pytestconfig):
    """Those twenty-four are named in time; those that the run directory has are not run again."""
    promises(campaign(trials(pytestconfig.option.c4_seed, TRIALS, drawable)))


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
@pytest.mark.parametrize("number", range(TRIALS))
def test_trial(number, campaign, drawable, pytestconfig):
    """One of the twenty-four alone, as `test_trial[7]`."""
    (verdict,) = campaign(trials(pytestconfig.option.c4_seed, TRIALS, drawable)[number : number + 1])
    said = [verdict.get(key) for key in ("right", "healthy", "replayed")]
    assert said == [True, 0, True], verdict


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
@pytest.mark.parametrize("shard", range(12))
def test_campaign_of_three_hundred(shard, campaign, judge, promises, drawable, pytestconfig):
    """A shard of three hundred trials, as many right, and in time; what the directory has is not run again."""
    drawn = trials(pytestconfig.option.c4_seed + 1000, 12 * SHARD, drawable)
    verdicts = campaign(drawn[SHARD * shard : SHARD * (shard + 1)])
    judge(verdicts)
    promises(verdicts)


@pytest.fixture
def judge(measure, save, fabric):
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
        shares(measure, "campaign", figures(graded(tried, fabric)), {})
        save("campaign", Campaign(tuple(map(shown, tried))))

    return report


@pytest.fixture
def promises(measure, fabric):
    """Say how soon those were named that were named rightly."""

    def report(verdicts):
        for verdict in verdicts:
            if verdict.get("right") and verdict["said"] and verdict["fault"] not in RECURRING:
                promised(verdict)
        resolves(graded([v for v in verdicts if "refused" not in v], fabric))

        for verdict in verdicts:
            if verdict.get("packets"):
                where = {"fault": verdict["fault"], "trial": verdict["name"]}
                measure("ask.packets", verdict["packets"], clock=Clock.NONE, **where)
                measure("ask.load_fraction", verdict["load_fraction"], at_most=POLITE, clock=Clock.NONE, **where)

    def resolves(grades):
        shares(measure, "campaign", figures(grades), TARGETS)
        measure("calibration.error", calibration_error(calibration(grades)), at_most=CALIBRATED, clock=Clock.NONE)
        for one in grades:
            if one.resolve_s is not None and one.fault not in RECURRING:
                measure("resolve.time_s", one.resolve_s, unit="s", fault=one.fault, trial=one.trial)

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
        f"{verdict['expected']}, {verdict['target']['kind']}",
        kind(said[0][0], said[0][2]) if said else "silence",
        verdict["right"],
        ", ".join(f"{key} {value}" for key, value in words.items()),
    )


def kind(syndrome, component):
    """`communication_slow, nic`."""
    return f"{syndrome}, {component.partition(' ')[0]}"
