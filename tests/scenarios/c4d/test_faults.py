"""C4D on a running job: each fault is alarmed, classified, and pinned to the component that has it."""

import time

import pytest

from c4bench.model.diagnosis import Component, Syndrome
from c4bench.model.measurement import Clock
from c4bench.record.artefacts import DelayMatrices, DelayMatrix, Faults, FaultTimeline
from c4bench.units import format_time

HEALTHY_S = 1.5
PATIENCE_S = 10.0


@pytest.fixture
def verdict(c4d, job, replayed, measure, save):
    """Hold C4D's first finding against the fault that was injected, and draw its timeline."""

    def judge(name, fault, syndrome, *, alarm_within_s, name_within_s):
        found = c4d.wait(PATIENCE_S)
        correct = (found.syndrome, found.component) == (syndrome, fault.target)
        measure("c4d.correct_fraction", float(correct), equals=1, clock=Clock.NONE, fault=name)
        alarm_s, name_s = found.alarmed_s - fault.observed_s, found.named_s - fault.observed_s
        labels = {"fault": name, "plus_minus": fault.clock_error_s}
        measure("c4d.alarm_s", alarm_s, unit="s", at_most=alarm_within_s, **labels)
        measure("c4d.name_s", name_s, unit="s", at_most=name_within_s, **labels)
        timeline = FaultTimeline(
            name=name,
            target=str(fault.target),
            expected=syndrome,
            onset_s=fault.onset_s,
            observed_s=fault.observed_s,
            alarmed_s=found.alarmed_s,
            named_s=found.named_s,
            diagnosis=f"{found.syndrome}: {found.component}; {found.evidence[0]}",
            correct=correct,
        )
        save("faults", Faults((timeline,)))
        assert correct, f"C4D said {found.syndrome} of {found.component} after {format_time(found.named_s)}"
        assert len(c4d.all()) == 1, "one fault, one diagnosis"
        assert replayed(job.id), "the recording says something else"

    return judge


@pytest.mark.needs(hosts=8)
def test_slow_receiver(job, rdma_hosts, inject, verdict, cluster, save):
    """A NIC that receives at a quarter of its rate is named, as a receiver, within two seconds."""
    time.sleep(HEALTHY_S)
    victim = rdma_hosts[5].name
    healthy = cluster.delay_matrix(job.id)
    with inject("nic.rate", host=victim, nic=0, direction="rx", fraction=0.25) as fault:
        verdict("nic.rate", fault, Syndrome.COMMUNICATION_SLOW, alarm_within_s=2.0, name_within_s=2.0)
        assert fault.target == Component("nic", f"{victim}/0", "rx")
        slow = cluster.delay_matrix(job.id)
    save("delay_matrix", DelayMatrices((matrix("healthy", healthy), matrix(f"{victim} receives at a quarter", slow))))


@pytest.mark.needs(hosts=8)
def test_killed_rank(job, inject, verdict):
    """A rank whose process is killed is named, and not the neighbours whose connections die after it."""
    time.sleep(HEALTHY_S)
    victim = job.members[3]
    with inject("process.kill", host=victim.host, job=job.id, rank=victim.rank) as fault:
        verdict("process.kill", fault, Syndrome.NON_COMMUNICATION_HANG, alarm_within_s=1.0, name_within_s=2.0)
        assert fault.target == Component("rank", f"{job.id}:{victim.rank}")


@pytest.mark.needs(hosts=4)
def test_slow_rank(job, inject, verdict):
    """A rank that computes twice as long is named as the one the others wait for."""
    time.sleep(HEALTHY_S)
    victim = job.members[-2]
    with inject("process.slow", host=victim.host, job=job.id, rank=victim.rank, factor=2.0) as fault:
        verdict("process.slow", fault, Syndrome.NON_COMMUNICATION_SLOW, alarm_within_s=2.0, name_within_s=2.0)
        assert fault.target == Component("rank", f"{job.id}:{victim.rank}")


def matrix(label, found):
    """A delay matrix as the report draws it."""
    return DelayMatrix(label, tuple(found.nics), tuple(tuple(row) for row in found.cells))
