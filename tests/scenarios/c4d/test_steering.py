"""From a fault to training again: what broke is isolated, a spare takes its place, the job goes on from a checkpoint."""

import pytest

from c4bench.model.diagnosis import Component
from c4bench.model.steering import Action, Policy
from c4bench.record.artefacts import Faults, FaultTimeline

RESTART = Policy(hang=Action.RESTART)
HEALTHY_STEP = 59
PATIENCE_S = 30.0
RESUME_AT_MOST_S = 10.0


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


@pytest.mark.needs(hosts=8)
def test_killed_rank(steer, inject, measure, save):
    """A killed rank's host is replaced by the spare, and each loss after the restart is what it would have been."""
    job = steer(RESTART, spares=1, ranks=7)
    job.wait_step(HEALTHY_STEP, PATIENCE_S)
    victim = job.attempt.members[3]
    with inject("process.kill", host=victim.host, job=job.spec.id, rank=victim.rank) as fault:
        incident = job.wait_resumed(PATIENCE_S)
    assert incident.component == Component("rank", f"{job.spec.id}:{victim.rank}")
    measure("restart.first_iteration_s", incident.resumed_s - incident.diagnosis.alarmed_s, unit="s", at_most=10.0)
    save("faults", Faults((timeline("process.kill", fault, incident),)))
