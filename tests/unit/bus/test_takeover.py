"""What a detector says of a job that it has taken over from one that was killed."""

import asyncio
import ssl
from collections import Counter, defaultdict
from functools import lru_cache
from itertools import product

import pytest

from c4bench.agent.window_message import WindowMessages
from c4bench.bus.connection import Bus, Stored
from c4bench.bus.job_follower import JobFollower, JobJudges
from c4bench.bus.jobs import JobEntry, is_repeat
from c4bench.bus.lease import HeldLease
from c4bench.bus.subjects import Subjects
from c4bench.c4d import detector
from c4bench.model.fabric import Nic
from c4bench.model.step import StepOp
from c4bench.wire.messages import JobSpec
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob

SUBJECTS = Subjects("c4")
RATE_BPS = 10e9
MIX = (StepOp("all_reduce", 4 << 20, 0.05), StepOp("all_to_all", 4 << 20, 0.0))
JOB = SimJob(4, MIX, "job", rate_bps=RATE_BPS)
# When the fault begins; when it has lasted for longer than the next detector reads back; when the simulation ends.
FAULT_S, LONG_AFTER_S, END_S = 6.0, 10.5, 11.5
FAULTS = {
    "none": (),
    "a stopped rank that goes on": (SimFault(SimFaultKind.STOPPED, 1, FAULT_S, FAULT_S + 2.0),),
    "a killed rank": (SimFault(SimFaultKind.KILLED, 2, FAULT_S),),
    "a slow NIC": (SimFault(SimFaultKind.NIC_RATE, 1, FAULT_S, factor=0.25, side="tx"),),
    "a slow rank": (SimFault(SimFaultKind.COMPUTE, 3, FAULT_S, factor=2.0),),
}


@lru_cache
def sent(fault):
    """The job's description, and all its windows as the bus stores them, at times of the server from 1,000 s on."""
    encoders, stored, spec = defaultdict(WindowMessages), [], None
    for tick in simulate(JOB, FAULTS[fault], END_S):
        for window in tick.windows:
            if spec is None:
                members = window.comms[0].members
                nics = tuple(Nic(member.host, 0, "", "", "", RATE_BPS) for member in members)
                spec = JobSpec("job", "pulse", members, nics)
            body = bytes(encoders[window.host].encode(window))
            names = ("change" if window.sequence else "begin") if encoders[window.host].named else ""
            subject = SUBJECTS.window("job", window.host, names)
            stored.append(Stored(len(stored) + 1, 1000.0 + tick.time_s, subject, body))
    return spec, stored


class Detector:
    """Follows the job as a detector does, up to `until_s`, from where the lease says; `found` is what it says."""

    def __init__(self, fault, before, until_s):
        spec, stored = sent(fault)
        dropped = defaultdict(Counter)
        bus = Bus("nats://127.0.0.1:1", ssl.create_default_context(), "detector", SUBJECTS)
        judge = JobJudges().judge(spec, dropped)
        self.follower = follower = JobFollower(bus, JobEntry(spec, 1), judge, dropped, before, None)
        for message in stored:
            sort, host, *names = message.subject.split(".")[4:]
            if message.at_s < before.judged_s - before.memory_s:
                if sort == "names":
                    follower._windows.note_names(host, message.body, begins=names == ["begin"])
            elif message.at_s <= 1000.0 + until_s:
                follower._evaluate(follower._clock.passes(message.at_s, 0.0))
                follower._ingest(message)
        follower.judged_s, follower.standing = follower._clock.judged_s, judge.standing
        self.found = list(follower._unpublished)
        assert not dropped

    @property
    def lease(self):
        return self.follower.progress("detector")


# Before a fault, while it is judged, and long after it.
KILLED_S = FAULT_S - 0.3, FAULT_S + 0.7, LONG_AFTER_S
BY_DAY = {
    ("a slow NIC", KILLED_S[0]),
    ("a stopped rank that goes on", KILLED_S[1]),
    ("a slow rank", KILLED_S[1]),
    ("a killed rank", KILLED_S[2]),
    ("none", KILLED_S[2]),
}


@lru_cache
def undisturbed(fault):
    """What a detector says that is never killed."""
    return Detector(fault, HeldLease(""), END_S).found


@pytest.mark.parametrize(
    ("fault", "killed_s"),
    [case if case in BY_DAY else pytest.param(*case, marks=pytest.mark.nightly) for case in product(FAULTS, KILLED_S)],
)
def test_a_job_that_was_taken_over_is_judged_as_if_its_detector_had_not_been_killed(fault, killed_s):
    """Whenever a detector is killed, it and the next one say together what one says that is not killed, as soon."""
    first = Detector(fault, HeldLease(""), killed_s)
    published = list(first.found)
    for finding in Detector(fault, first.lease, END_S).found:
        if not is_repeat(finding, published):
            published.append(finding)
    said = [(finding.component, finding.cause, finding.alternatives) for finding in published]
    assert said == [(finding.component, finding.cause, finding.alternatives) for finding in undisturbed(fault)]
    for finding, other in zip(published, undisturbed(fault), strict=True):
        assert finding.named_s == pytest.approx(other.named_s, abs=0.25)
        assert finding.onset_s == pytest.approx(other.onset_s, abs=0.25)


def test_an_error_in_judging_a_job_is_reported_once(monkeypatch):
    """Times to judge come ten times a second: an error that comes with each of them is reported once."""
    reported = []

    async def judge():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))
        Detector("none", HeldLease(""), 1.0)

    def fail(*_):
        raise KeyError("c4")

    monkeypatch.setattr(detector.Detector, "ingest", fail)
    asyncio.run(judge())
    assert reported == ["job: a record was not judged: KeyError: 'c4'"]
