"""When a job's NICs are swept, and what becomes of it; the probes themselves are the lab's."""

import asyncio
from types import SimpleNamespace

import pytest

from c4bench.control import probe_jobs
from c4bench.control.probe_sweeper import ProbeSweeper
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
def attempt(monkeypatch):
    """Tell sweeps of findings one after another; how often probes were sent, and what C4D heard."""

    def run(policy, syndromes, *, present=True, fails=False, late=False):
        asked, heard = [], []

        async def shares(_master, steps, _nics):
            asked.append(steps)
            if fails:
                raise UnhealthyError("an agent is gone")
            return [0.5 if late and step is steps[-1] else 1.0 for step in steps for _ in step]

        async def scene():
            running = SimpleNamespace(spec=SPEC, policy=policy)
            register = SimpleNamespace(present=lambda _: running if present else None)
            detection = SimpleNamespace(hear=lambda attempt, record: heard.append((attempt, record)))
            sweeps = ProbeSweeper(SimpleNamespace(register=register, detection=detection))
            for syndrome in syndromes:
                sweeps.consider("job~2", [finding(syndrome)])
                await asyncio.sleep(0)
            await sweeps.let_go("job")

        monkeypatch.setattr(probe_jobs, "shares", shares)
        asyncio.run(scene())
        return asked, heard

    return run


def test_a_slow_finding_has_all_nics_swept_once(attempt):
    """What comes soon after is the same fault; each probe has a share, and C4D hears of both together."""
    asked, heard = attempt(Policy(sweep=True), [Syndrome.COMMUNICATION_SLOW, Syndrome.NON_COMMUNICATION_SLOW])
    ((name, swept),) = heard
    assert (len(asked), name, swept.job) == (1, "job~2", "job~2")
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
def test_nothing_is_sent_for_anything_else(attempt, policy, syndrome, present):
    """Probes share a fabric that a job runs on: they are sent where its owner allows it, and for slowness only."""
    assert attempt(policy, [syndrome], present=present) == ([], [])


def test_probes_that_cannot_be_sent_tell_nothing(attempt):
    """The job goes on as if there had been no sweep."""
    asked, heard = attempt(Policy(sweep=True), [Syndrome.COMMUNICATION_SLOW], fails=True)
    assert (len(asked), heard) == (1, [])


def test_what_begins_meanwhile_is_looked_at_once_more(attempt):
    """Probes that are slow in the last step only are nobody's fault yet; a third sweep would tell no more."""
    asked, heard = attempt(Policy(sweep=True), [Syndrome.COMMUNICATION_SLOW], late=True)
    assert (len(asked), len(heard)) == (2, 2)
