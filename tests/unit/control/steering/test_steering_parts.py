"""What steering probes before it decides, what it does about hosts that are absent, and how an incident ends."""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from c4bench.control.jobs.job import Job
from c4bench.control.state.event_log import EventLog
from c4bench.control.state.registry import JobRegistry
from c4bench.control.state.store import Store
from c4bench.control.steering import Steering
from c4bench.errors import AbsentHostsError, UnhealthyError
from c4bench.model.diagnosis import Component, Diagnosis, ProbeFlow, Syndrome
from c4bench.model.fabric import Host, Nic
from c4bench.model.steering import Action, Incident, Policy
from c4bench.model.telemetry import Member
from c4bench.steer import Fleet
from c4bench.wire.messages import JobSpec, LaunchJob, Result

NICS = {name: Nic(name, 0, "r", "n", "", 1e10) for name in ("h0", "h1", "h2", "h3")}
SPARES = tuple(Host(name, "", (NICS[name],)) for name in ("h2", "h3"))
PROBE = ProbeFlow("h0/0", "h1/0", 0, 1e9, 0.5, (Component("nic", "h1/0"),))


def slow(*probes, component="h1/0", confidence=0.9):
    part = Component("nic", component)
    return Diagnosis("j", Syndrome.COMMUNICATION_SLOW, part, 1.0, 2.0, 3.0, confidence, (), "", probes=probes)


class Scene:
    """A job on h0 and h1 with two spares; `absent` hosts do not start, and probes reach `shares` or fail."""

    def __init__(self, policy, shares=(1.0,)):
        self.registry, self.log = JobRegistry(Store(None), adopt=False), EventLog(Store(None))
        members = tuple(Member(rank, f"h{rank}", (f"h{rank}/0",)) for rank in range(2))
        spec = JobSpec("j", "none", members, (NICS["h0"], NICS["h1"]))
        self.registry.add(LaunchJob(spec, policy, SPARES))
        self.shares, self.absent, self.refusal, self.resumes = shares, [], None, True
        self.asked, self.applied, self.ended, self.started = [], [], [], []
        agents = SimpleNamespace(by_host=dict.fromkeys(NICS), wait_for=self._wait_for)
        fleet = SimpleNamespace(fleet=self._fleet, idle_spares=self._idle)
        parts = SimpleNamespace(
            start=self._start, end=self._end, shares=self._shares, apply_diagnosis=self._apply, failing=self._failing
        )
        self.steering = Steering(self.registry, agents, parts, fleet, parts, parts, self.log)

    async def _wait_for(self, holds, _timeout_s):
        return holds()

    def _idle(self, running):
        used = {member.host for member in running.spec.members}
        return [spare for spare in SPARES if spare.name not in used]

    def _fleet(self, running):
        idle = tuple(self._idle(running))
        return Fleet(3.0, running.spec.members, running.wanted, idle, (), tuple(running.restarts_s))

    async def _shares(self, steps, nics):
        self.asked.append((steps, sorted(nics)))
        if self.shares is None:
            raise UnhealthyError("h1: no agent is connected")
        return list(self.shares)

    async def _failing(self, pairs):
        self.asked.append(pairs)
        return []

    async def _apply(self, diagnosis):
        self.applied.append(diagnosis)

    async def _end(self, attempt, unreachable=()):
        self.ended.append((attempt, list(unreachable)))

    async def _start(self, spec, *, followed):
        assert followed
        self.started.append([member.host for member in spec.members])
        if gone := [host for host in self.started[-1] if host in self.absent]:
            raise AbsentHostsError(gone, "no agent answers")
        if self.refusal:
            raise UnhealthyError(self.refusal)
        job = Job(spec)
        for rank in range(len(spec.members) if self.resumes else 0):
            await job.add(Result(spec.id, rank, {"kind": "resumed", "step": 40 + rank}, 1))
        return job

    def play(self, *diagnoses, between=lambda: None):
        """Consider diagnoses of the present attempt, and wait for what follows; the published incidents."""

        async def scene():
            self.steering.consider("j", diagnoses)
            between()
            while tasks := [*self.steering._decisions.values(), *self.steering._restarts.values()]:
                await asyncio.wait(tasks, timeout=5)

        asyncio.run(asyncio.wait_for(scene(), 20))
        return [event.incident for event in self.log.events]


ACT = Policy(slow=Action.RESTART, hang=Action.RESTART, resume_within_s=0.2)


def test_a_slow_diagnosis_is_probed_before_it_is_acted_on():
    """A fast probe across the suspect leaves the other one, which path planning is told and which is isolated."""
    scene = Scene(ACT, shares=(1.0,))
    doubtful = msgspec.structs.replace(slow(PROBE), alternatives=(Component("nic", "h0/0"),))
    incidents = scene.play(doubtful)
    assert scene.asked == [([[PROBE]], ["h0/0", "h1/0"])]
    assert [(found.component.name, found.confidence) for found in scene.applied] == [("h0/0", 0.95)]
    assert {(incident.diagnosis.component.name, incident.out) for incident in incidents} == {("h0/0", "h0")}


@pytest.mark.parametrize(
    ("policy", "diagnosis"), [(Policy(hang=Action.RESTART), slow(PROBE)), (ACT, slow())], ids=["observe", "no probes"]
)
def test_nothing_is_probed_that_changes_nothing(policy, diagnosis):
    """A policy that only observes, and a diagnosis that asks for no probes, are decided as they are."""
    scene = Scene(policy)
    scene.play(diagnosis)
    assert scene.asked == []
    assert scene.applied == []


def test_probes_that_cannot_be_sent_leave_the_diagnosis(caplog):
    """The decision is taken on what is known, and a warning says why no more is."""
    scene = Scene(ACT, shares=None)
    incidents = scene.play(slow(PROBE))
    assert incidents[0].diagnosis == slow(PROBE)
    assert "probes not sent: h1: no agent is connected" in caplog.text


def test_an_incident_ends_when_the_job_trains_again():
    """The stages have their times in order; the step is that of the rank which is furthest behind."""
    scene = Scene(ACT)
    *_, last = scene.play(slow())
    assert (last.out, last.spare, last.resumed_step) == ("h1", "h2", 40)
    assert last.isolated_s <= last.restarted_s <= last.resumed_s
    assert scene.started == [["h0", "h2"]]
    assert scene.ended == [("j", [])]
    assert scene.registry.running("j").open == []


def test_hosts_that_are_absent_are_replaced_by_spares():
    """A spare that does not answer is itself replaced; the incident names the one that is used."""
    scene = Scene(ACT)
    scene.absent = ["h2"]
    *_, last = scene.play(slow())
    assert scene.started == [["h0", "h2"], ["h0", "h3"]]
    assert scene.ended == [("j", []), ("j~1", ["h2"])]
    assert (last.spare, last.resumed_step) == ("h3", 40)
    assert scene.registry.running("j").spec.id == "j~2"


@pytest.mark.parametrize(
    ("absent", "refusal", "resumes", "reason"),
    [
        (["h2", "h3", "h0"], None, True, "no agent answers"),
        ([], "h2: no RDMA device", True, "h2: no RDMA device"),
        ([], None, False, "0 of 2 'resumed' results in 0.2 s"),
    ],
)
def test_a_restart_that_fails_ends_the_incident_with_the_reason(absent, refusal, resumes, reason, caplog):
    """Too few spares, a host that refuses, or ranks that do not train: the incident says so, and is closed."""
    scene = Scene(ACT)
    scene.absent, scene.refusal, scene.resumes = absent, refusal, resumes
    *_, last = scene.play(slow())
    assert reason in last.reason
    assert last.resumed_s is None
    assert scene.registry.running("j").open == []
    assert "job j: restart failed" in caplog.text


def test_diagnoses_before_the_decision_are_decided_together():
    """One more that arrives meanwhile joins; one of an attempt that has ended does not count."""
    scene = Scene(ACT)

    def more():
        scene.steering.consider("j", [slow(component="h0/0", confidence=0.6)])
        scene.steering.consider("j~7", [slow()])

    incidents = scene.play(slow(), between=more)
    assert {incident.diagnosis.component.name for incident in incidents} == {"h1/0", "h0/0"}
    assert len(scene.ended) == 1


def test_a_restart_of_an_earlier_master_is_continued():
    """The present attempt is started, and stages that were reached keep their times."""
    scene = Scene(ACT)
    incident = Incident("j", slow(), Action.RESTART, "why", isolated_s=7.0)
    scene.registry.save_incidents("j", [incident])

    async def play():
        scene.steering.resume()
        await asyncio.gather(*scene.steering._restarts.values())

    asyncio.run(play())
    last = scene.log.events[-1].incident
    assert (last.isolated_s, last.resumed_step) == (7.0, 40)
    assert scene.started == [["h0", "h1"]]


def test_a_job_that_is_released_is_left_alone():
    """What steering was doing for it is cancelled; releasing it again is harmless."""
    scene = Scene(ACT, shares=(1.0,))

    async def play():
        gate = asyncio.Event()

        async def wait(*_):
            await gate.wait()

        scene.steering._probes.shares = wait
        scene.steering.consider("j", [slow(PROBE)])
        await asyncio.sleep(0.01)
        await scene.steering.release("j")
        await scene.steering.release("j")
        return scene.steering._decisions, scene.steering._undecided

    assert asyncio.run(play()) == ({}, {})
    assert scene.log.events == []


def test_a_restart_ends_with_the_job_or_its_next_failure():
    """A restart under way is cancelled when the job is released, and when its attempt fails and is restarted again."""
    scene = Scene(ACT)
    scene.resumes = False

    async def play():
        scene.steering.consider("j", [slow()])
        while not scene.started:
            await asyncio.sleep(0.001)
        (first,) = scene.steering._restarts.values()
        again = msgspec.structs.replace(slow(component="h2/0"), job="j~1")
        scene.steering.consider("j~1", [again])
        while len(scene.started) < 2:
            await asyncio.sleep(0.001)
        (second,) = scene.steering._restarts.values()
        assert first.cancelled()
        await scene.steering.release("j")
        return second.cancelled(), dict(scene.steering._restarts)

    assert asyncio.run(asyncio.wait_for(play(), 10)) == (True, {})
    assert scene.started == [["h0", "h2"], ["h0", "h3"]]


def test_a_doubtful_hang_is_tried_with_neighbours_and_a_spare():
    """All NICs of the job and an idle spare's send in a ring; a NIC that fails with both neighbours is the one."""
    scene = Scene(ACT)
    failed = [(NICS["h0"], NICS["h1"]), (NICS["h1"], NICS["h2"])]

    async def failing(pairs):
        scene.asked.append([(one.name, other.name) for one, other in pairs])
        return failed

    scene.steering._probes.failing = failing
    hang = Diagnosis("j", Syndrome.COMMUNICATION_HANG, Component("nic", "h0/0"), 1.0, 2.0, 3.0, 0.5, (), "")
    incidents = scene.play(hang)
    assert scene.asked == [[("h0/0", "h1/0"), ("h1/0", "h2/0"), ("h2/0", "h0/0")]]
    assert {incident.out for incident in incidents} == {"h1"}
    assert [found.component.name for found in scene.applied] == ["h1/0"]


def test_a_hang_that_is_only_observed_is_not_tried():
    """Trials disturb the fabric: where the policy does nothing about hangs there are none."""
    scene = Scene(Policy(slow=Action.RESTART))
    scene.play(Diagnosis("j", Syndrome.COMMUNICATION_HANG, Component("nic", "h0/0"), 1.0, 2.0, 3.0, 0.5, (), ""))
    assert scene.asked == []
