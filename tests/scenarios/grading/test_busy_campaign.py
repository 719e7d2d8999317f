"""Faults under jobs that communicate for much of their time, one, two or none: C4D names each of them, and no other."""

import time
from contextlib import ExitStack
from functools import partial

import msgspec
import pytest
from busy import busy_job, busy_trials, job_beside
from campaign import CATALOGUE, RECURRING, once, place
from trial_verdict import graded, operations, ours, recorded, shares

from c4bench.errors import InconclusiveError, UnhealthyError
from c4bench.model.measurement import Clock
from tools.campaign.figures import figures
from tools.campaign.grade import Answer
from tools.campaign.trial_record import NOTHING, TrialRecord, named_findings

READY_S = 60.0
LEASE_S, AWAY_S = 20.0, 6.0
PATIENCE_S, RECURRING_S = 4.0, 12.0
TRIALS = 8


@pytest.fixture
def attempt(
    cluster, rdma_hosts, inventory, ports, atlas, inject, clocks, run_directory, as_at_first, possible_faults  # noqa: ARG001
):  # fmt: skip
    """Run one trial, and return it as it is graded."""

    def run(trial):
        as_at_first([host.name for host in rdma_hosts])
        job = busy_job(trial, rdma_hosts)
        where = places(trial, job)
        running = cluster.start(job)
        beside = cluster.start(job_beside(trial, rdma_hosts)) if trial.beside else None
        try:
            for one in filter(None, (running, beside)):
                cluster.results(one, "ready", READY_S)
            time.sleep(trial.healthy_s)
            with ExitStack() as injected:
                onset_s = time.time()
                faults = [injected.enter_context(broken(one, at)) for one, at in zip(trial.faults, where, strict=True)]
                time.sleep(RECURRING_S if any(one.fault in RECURRING for one in trial.faults) else PATIENCE_S)
                said = cluster.diagnoses(job.id), time.time()
                windows = ours(cluster.windows(job.id), clocks)
        finally:
            run_directory.save_telemetry(job.id, cluster.recording(job.id))
            cluster.stop(job.id)
            if beside:
                cluster.stop(beside.spec.id)
        record = healthy(trial, onset_s, said) if not faults else broken_record(trial, faults, said, windows)
        return msgspec.structs.replace(record, load=trial.load)

    def places(trial, job):
        """Where each fault goes; two of them go to different hosts."""
        taken, found = set(), []
        for fault in trial.faults:
            tried = (
                place(fault._replace(draw=draw), job, rdma_hosts, inventory, ports, possible_faults)
                for draw in draws(fault)
            )
            found.append(next(where for where in tried if host_of(where) not in taken))
            taken.add(host_of(found[-1]))
        return found

    def broken(fault, where):
        lease_s = AWAY_S if CATALOGUE[fault.fault].witness == "absence" else LEASE_S
        return inject(fault.fault, at=where, lease_s=lease_s, **fault.parameters)

    def broken_record(trial, faults, said, windows):
        first, *others = [
            recorded(one, fault, said, windows, ports, operations(windows, fault)[1])
            for one, fault in zip(trial.faults, faults, strict=True)
        ]
        beside = tuple(msgspec.structs.replace(one, findings=()) for one in others)
        return msgspec.structs.replace(first, name=trial.name, beside=beside)

    return run


def draws(fault):
    """The fault's own draw of a place, and further ones."""
    return range(fault.draw, fault.draw + 100)


def host_of(where):
    """The host of a place in words."""
    return where.rpartition("@")[2].partition("/")[0]


def healthy(trial, onset_s, said):
    """A trial without a fault, as it is graded."""
    found, until_s = said
    return TrialRecord(
        trial.name, "none", None, NOTHING, (), {}, onset_s, onset_s, until_s, 0.0, False, named_findings(found)
    )


@pytest.fixture
def campaign(attempt, run_directory):
    """Run trials, but those that the run directory has already, and return the line of each."""

    def run(trial):
        try:
            record = attempt(trial)
        except (InconclusiveError, UnhealthyError) as error:
            return {"fault": "", "refused": str(error)}
        return msgspec.to_builtins(record) | {"traffic": trial.traffic, "beside_job": trial.beside}

    return lambda wanted: once(run_directory.path / "campaign.jsonl", {one.name: partial(run, one) for one in wanted})


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
@pytest.mark.timeout(7200)
def test_busy_campaign(campaign, fabric, measure, drawable, pytestconfig):
    """Under busy jobs nothing healthy is named without alternatives, and nothing at all of jobs without a fault."""
    verdicts = campaign(busy_trials(pytestconfig.option.c4_seed, TRIALS, drawable))
    tried = graded([verdict for verdict in verdicts if "refused" not in verdict], fabric)
    found = figures(tried)
    measure("busy.trials", sum("refused" not in verdict for verdict in verdicts), at_least=TRIALS - 1, clock=Clock.NONE)
    shares(measure, "busy", found, {})
    measure("busy.false_alarms", sum(one.due for one in tried if not one.faults), at_most=0, clock=Clock.NONE)
    measure("busy.healthy_isolated", found.healthy_components, at_most=0, clock=Clock.NONE)


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
@pytest.mark.parametrize("number", range(TRIALS))
def test_busy_trial(number, campaign, fabric, drawable, pytestconfig):
    """One of them alone, as `test_busy_trial[7]`: each of its faults is named, and nothing healthy is."""
    tried = graded(campaign(busy_trials(pytestconfig.option.c4_seed, TRIALS, drawable)[number : number + 1]), fabric)
    named = {Answer.RESOLVED, Answer.AMONG, Answer.NOT_DUE}
    assert all(one.answer in named and not one.healthy for one in tried), tried
