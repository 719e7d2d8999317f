"""From a fault to training again: what broke is isolated, a spare takes its place, the job goes on from checkpoint."""

from pathlib import Path

import msgspec
import pytest

from c4bench.model.diagnosis import Component
from c4bench.model.event import AgentBack, AgentMissing, HostReturned
from c4bench.model.measurement import Clock
from c4bench.model.steering import Action, Policy
from c4bench.record.artefacts import Faults, FaultTimeline

# A process takes 3 s to start, and its share of a checkpoint, 4 GiB, 2.1 s to load: `workload.learning`'s rates.
RESTART = Policy(hang=Action.RESTART, hosts_per_hour=9, check_every_s=5.0)
SLOW_TOO = msgspec.structs.replace(RESTART, slow=Action.RESTART)
SMALL = {"gradient_bytes": 1 << 16, "token_bytes": 1 << 16, "checkpoint_every": 20}
RING = SMALL | {"gradient_bytes": 1 << 20, "token_bytes": 0}
RANKS, SPARES = 6, 2
HEALTHY_STEP, STEPS = 59, 100
PATIENCE_S = 60.0
RESUME_WITHIN_S = 10.0


@pytest.fixture(scope="module")
def undisturbed():
    """Losses of a job that nothing befell, by step; filled by the first scenario that needs them."""
    return {}


@pytest.fixture
def identical(steer, undisturbed):
    """The share of a job's losses that are, to the bit, those of an undisturbed job whose ranks sit elsewhere."""

    def compare(losses):
        if not undisturbed:
            quick = {"start_s": 0.0, "state_bytes": 0, "compute_s": 0.0, "checkpoint_every": 1000, "steps": STEPS}
            other = steer(Policy(), spares=0, ranks=RANKS, backwards=True, **(SMALL | quick))
            other.wait_step(STEPS - 1, PATIENCE_S)
            undisturbed.update(other.losses())
        both = sorted(losses.keys() & undisturbed.keys())
        assert len(both) >= 20, "too few steps to compare"
        return sum(losses[step] == undisturbed[step] for step in both) / len(both)

    return compare


@pytest.fixture
def resumed(measure, save):
    """Hold a restart against its limits: in time, everything named and stamped in order, on the spare."""

    def judge(name, job, fault):
        incident = job.wait_resumed(PATIENCE_S)
        found = incident.diagnosis
        took_s = incident.resumed_s - found.alarmed_s
        measure("restart.first_iteration_s", took_s, unit="s", at_most=RESUME_WITHIN_S, fault=name)
        done = (incident.isolated_s, incident.restarted_s, incident.resumed_s)
        stages = [fault.onset_s, found.alarmed_s, found.named_s, *done]
        assert stages == sorted(stages)
        assert incident.component == found.component
        hosts = {member.host for member in job.attempt.members}
        assert incident.spare in hosts
        assert incident.out not in hosts
        save("faults", Faults((timeline(name, fault, incident),)))
        return incident

    return judge


@pytest.mark.needs(hosts=8)
@pytest.mark.parametrize("spoilt", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["spoilt", "whole"])
def test_killed_rank(steer, inject, resumed, identical, measure, spoilt):
    """Every loss after the restart is what it would have been; a checkpoint with a torn shard is passed over."""
    job = steer(RESTART, spares=SPARES, ranks=RANKS, **SMALL)
    job.wait_step(HEALTHY_STEP, PATIENCE_S)
    assert identical(job.losses()) == 1
    if spoilt:
        tear(Path(job.spec.parameters["checkpoints"]) / "0000000060" / f"2-of-{RANKS}.shard")
    victim = job.spec.members[3]
    with inject("process.kill", host=victim.host, job=job.spec.id, rank=victim.rank) as fault:
        incident = resumed("process.kill", job, fault)
    assert incident.out == victim.host
    assert incident.resumed_step == (40 if spoilt else 60)
    job.wait_step(STEPS - 1, PATIENCE_S)
    measure("restart.loss_identical", identical(job.losses()), equals=1, clock=Clock.NONE)


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
def test_crashed_host(steer, inject, resumed):
    """A host that died is replaced and missed; when it has started again it passes its check and is put back."""
    job = steer(RESTART, spares=SPARES, ranks=RANKS, **SMALL)
    job.wait_step(HEALTHY_STEP, PATIENCE_S)
    victim = job.spec.members[4].host
    with inject("host.crash", host=victim, lease_s=20.0) as fault:
        incident = resumed("host.crash", job, fault)
        assert incident.out == victim
        assert job.wait_host_event(AgentMissing, victim, PATIENCE_S).ranks == "none"
    assert job.wait_host_event(AgentBack, victim, PATIENCE_S)
    assert job.wait_host_event(HostReturned, victim, PATIENCE_S).fraction >= RESTART.healthy_fraction


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
def test_dead_nic(steer, inject, resumed):
    """A NIC that sends nothing takes its host out, which is not put back before the NIC works again.

    Its side is named if something still reached it; the side that works never is.
    """
    job = steer(RESTART, spares=SPARES, ranks=RANKS, **SMALL)
    job.wait_step(HEALTHY_STEP, PATIENCE_S)
    victim = job.spec.members[2].host
    with inject("nic.blackhole", host=victim, nic=0, direction="tx", lease_s=60.0) as fault:
        incident = resumed("nic.blackhole", job, fault)
        assert incident.diagnosis.component in {Component("nic", f"{victim}/0", side) for side in ("", "tx")}
        assert job.wait_host_event(HostReturned, victim, 12.0) is None
    assert job.wait_host_event(HostReturned, victim, PATIENCE_S)


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
def test_late_nic(steer, inject, resumed):
    """A NIC that sends late in a ring is named, by both of its paths or after probes, and a spare takes over."""
    job = steer(SLOW_TOO, spares=SPARES, ranks=RANKS, **RING)
    job.wait_step(HEALTHY_STEP, PATIENCE_S)
    victim = job.spec.members[2].host
    with inject("nic.delay", host=victim, nic=0, direction="tx", delay_s=0.002, lease_s=30.0) as fault:
        incident = resumed("nic.delay", job, fault)
        found = incident.diagnosis
        assert found.component == Component("nic", f"{victim}/0", "tx")
        assert told_by_probes(found) or not found.alternatives


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
@pytest.mark.usefixtures("atlas")
def test_slow_link(steer, inject, cluster, ports):
    """A ring's traffic cannot tell a slow link from the NICs beyond it: probes do, and flows leave it, but no host."""
    job = steer(SLOW_TOO, spares=0, **RING)
    job.wait_step(HEALTHY_STEP, PATIENCE_S)
    hops = {hop for path in cluster.placed(job.spec.id).values() for hop in path.hops}
    crossed = sorted({ports.leading.get(hop) for hop in hops}.intersection(ports.across))
    with inject("link.rate", at=crossed[0], direction="tx", fraction=0.25, lease_s=30.0):
        incident = job.wait_decided(PATIENCE_S)
        used = {hop for path in cluster.placed(job.spec.id).values() for hop in path.hops}
    assert (incident.action, incident.out) == (Action.OBSERVE, "")
    found = incident.diagnosis
    assert told_by_probes(found), found
    assert {part.kind for part in found.suspects} == {"link"}
    assert found.component.name in hops - used


def told_by_probes(found):
    """Whether probes have ended the doubt: packet trains, or transfers between NICs."""
    return found.probed or found.evidence[-1].startswith("probes, ")


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
def test_lost_agent(steer, inject):
    """An agent that cannot reach the master is missed, its ranks are known to live, and the job is left alone."""
    job = steer(RESTART, spares=SPARES, ranks=RANKS, **SMALL)
    job.wait_step(HEALTHY_STEP, PATIENCE_S)
    victim = job.spec.members[3].host
    with inject("host.management_cut", host=victim, lease_s=20.0):
        assert job.wait_host_event(AgentMissing, victim, PATIENCE_S).ranks == "moving"
    assert job.wait_host_event(AgentBack, victim, PATIENCE_S)
    assert all(incident.action is Action.OBSERVE for incident in job.incidents())
    assert job.attempt.id == job.spec.id


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
def test_without_spares_a_job_shrinks_to_its_minimum(steer, inject):
    """The first dead host is borne by a job that may lose one rank; the second leaves it standing, and says why."""
    job = steer(Policy(hang=Action.RESTART, min_ranks=RANKS - 1, hosts_per_hour=9), spares=0, ranks=RANKS, **SMALL)
    job.wait_step(HEALTHY_STEP, PATIENCE_S)
    first, second = job.spec.members[1].host, job.spec.members[3].host
    with inject("nic.blackhole", host=first, nic=0, lease_s=60.0):
        incident = job.wait_resumed(PATIENCE_S)
        assert (incident.out, incident.spare) == (first, "")
        assert [member.rank for member in job.attempt.members] == list(range(RANKS - 1))
        assert incident.resumed_step == 60
        job.wait_step(STEPS - 1, PATIENCE_S)
        with inject("nic.blackhole", host=second, nic=0, lease_s=60.0):
            left = job.wait_decided(PATIENCE_S, after=incident)
    assert (left.action, left.out) == (Action.OBSERVE, "")
    assert f"fewer than the job's minimum of {RANKS - 1}" in left.reason


def tear(path):
    """Cut a file short, as a full disk or a crash of the storage does."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def timeline(name, fault, incident):
    """The stages of an incident, for the report and for `c4bench downtime`."""
    found = incident.diagnosis
    return FaultTimeline(
        name=name,
        target=str(fault.target),
        expected=found.syndrome,
        onset_s=fault.onset_s,
        observed_s=fault.observed_s,
        alarmed_s=found.alarmed_s,
        named_s=found.named_s,
        isolated_s=incident.isolated_s,
        resumed_s=incident.resumed_s,
        diagnosis=f"{found.syndrome}: {found.component}; {incident.reason}",
        correct=found.component == fault.target,
    )
