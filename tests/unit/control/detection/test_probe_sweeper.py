"""When a job's NICs are swept, and what C4D gets; the lab tests the probes themselves."""

import asyncio
from types import SimpleNamespace

import pytest

from c4bench.control.detection.probing import ProbeSweeper
from c4bench.errors import UnhealthyError
from c4bench.model.diagnosis import Component, Diagnosis, Syndrome
from c4bench.model.fabric import Nic
from c4bench.model.steering import Policy
from c4bench.wire.messages import JobSpec

NICS = tuple(Nic(f"h{host}", 0, "", "", "", 1e10) for host in range(8))
SPEC = JobSpec("job~2", "", (), NICS)


def finding(syndrome):
    return Diagnosis("job~2", syndrome, Component("nic", "h1/0"), 1.0, 2.0, 2.0, 0.9, (), "")


@pytest.fixture
def attempt():
    """Pass diagnoses to a sweeper one after another; return the probes it sent and the records C4D got."""

    def run(policy, syndromes, *, present=True, fails=False, late=False):
        sent, ingested = [], []

        async def shares(steps, _nics):
            sent.append(steps)
            if fails:
                raise UnhealthyError("an agent is gone")
            return [0.5 if late and step is steps[-1] else 1.0 for step in steps for _ in step]

        async def scene():
            running = SimpleNamespace(spec=SPEC, policy=policy)
            registry = SimpleNamespace(by_attempt=lambda _: running if present else None)
            detection = SimpleNamespace(ingest=lambda attempt, record: ingested.append((attempt, record)))
            sweeper = ProbeSweeper(registry, detection, SimpleNamespace(shares=shares))
            for syndrome in syndromes:
                sweeper.consider("job~2", [finding(syndrome)])
                await asyncio.sleep(0)
            await sweeper.release("job")

        asyncio.run(scene())
        return sent, ingested

    return run


def test_a_slow_diagnosis_causes_one_sweep_of_all_nics(attempt):
    """Several slow diagnoses within seconds cause one sweep, and C4D gets each probe with its share."""
    sent, ingested = attempt(Policy(sweep=True), [Syndrome.COMMUNICATION_SLOW, Syndrome.NON_COMMUNICATION_SLOW])
    ((name, swept),) = ingested
    assert (len(sent), name, swept.job) == (1, "job~2", "job~2")
    assert {probe.source for probe in swept.probes} == {nic.name for nic in NICS}
    assert len(swept.shares) == len(swept.probes)


@pytest.mark.parametrize(
    ("policy", "syndrome", "present"),
    [
        (Policy(), Syndrome.COMMUNICATION_SLOW, True),
        (Policy(sweep=True), Syndrome.COMMUNICATION_HANG, True),
        (Policy(sweep=True), Syndrome.COMMUNICATION_SLOW, False),
    ],
    ids=["not allowed", "a hang", "an attempt that is over"],
)
def test_other_diagnoses_cause_no_sweep(attempt, policy, syndrome, present):
    """Probes are sent only if the job's policy allows them, and only for slowness of a running attempt."""
    assert attempt(policy, [syndrome], present=present) == ([], [])


def test_probes_that_cannot_be_sent_change_nothing(attempt):
    """If probes cannot be sent, C4D gets nothing and the job continues."""
    sent, ingested = attempt(Policy(sweep=True), [Syndrome.COMMUNICATION_SLOW], fails=True)
    assert (len(sent), ingested) == (1, [])


def test_a_fault_during_the_sweep_causes_a_second_sweep(attempt):
    """If only the last step is slow, a fault may have begun meanwhile, and there is one more sweep."""
    sent, ingested = attempt(Policy(sweep=True), [Syndrome.COMMUNICATION_SLOW], late=True)
    assert (len(sent), len(ingested)) == (2, 2)
