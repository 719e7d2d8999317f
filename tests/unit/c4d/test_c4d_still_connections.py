"""Jobs whose ranks record connections and no operations, such as programs that we did not write."""

import pytest
from c4d_telemetry import MIX, comm, conn, remade, window
from msgspec.structs import replace

from c4bench.c4d.detector import Detector
from c4bench.model.diagnosis import Cause, Component, Syndrome
from c4bench.model.step import StepOp
from c4bench.model.telemetry import NicRecord, RankRecord
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob

AT_S = 8.0
JOBS = {"mix": SimJob(8, MIX), "ring": SimJob(8, (StepOp("all_reduce", 64 << 20, 0.05),))}
RING_BY_DAY = [
    pytest.param(job, id=name, marks=pytest.mark.nightly if name == "mix" else ()) for name, job in JOBS.items()
]


def bare(windows, now_s, again=()):
    """The windows as a preloaded library would fill them; NICs of the hosts `again` retransmit since the fault."""
    for one in windows:
        conns = [replace(c, wait_credit_s=0.0, wait_data_s=0.0, owed=0, state=_state(c)) for c in one.conns]
        sent_again = int(10 * (now_s - AT_S)) if one.host in again and now_s > AT_S else 0
        nics = (NicRecord(f"{one.host}/0", "linkup", retransmits=sent_again),)
        yield remade(one, ops=(), conns=tuple(conns), nics=nics)


def _state(connection):
    return "transfer" if connection.outstanding else "idle"


def judged(job, *faults, again=(), duration_s=16.0):
    """What C4D says of a simulated job without its operations."""
    detector, found = Detector(), []
    for tick in simulate(job, faults, duration_s):
        for one in bare(tick.windows, tick.time_s, again):
            detector.ingest_window(one)
        found += detector.evaluate(tick.time_s)
    assert detector.dropped == 0
    return found


def fault(kind, **values):
    return SimFault(kind, 3, AT_S, **values)


@pytest.mark.parametrize("job", RING_BY_DAY)
def test_a_healthy_job_says_nothing(job):
    """Connections that are idle while ranks compute are no finding."""
    assert judged(job) == []


@pytest.mark.parametrize("job", RING_BY_DAY)
def test_a_nic_at_half_its_rate_is_named(job):
    """The delay matrix needs no operations."""
    first = judged(job, fault(SimFaultKind.NIC_RATE, factor=0.5, side="tx"))[0]
    assert (first.component, first.cause) == (Component("nic", "h3/0", "tx"), Cause.TRANSFER_SLOW)
    assert first.alarmed_s - AT_S < 1.0


@pytest.mark.parametrize("job", RING_BY_DAY)
def test_a_dead_path_is_named_with_what_it_could_be_as_well(job):
    """A connection that stands still, and whose NIC sends again, shows both of its ends within a second and a half."""
    found = judged(job, fault(SimFaultKind.PATH_RATE, factor=0.0, peer=4), again=("h3",))
    assert [(one.syndrome, one.cause) for one in found] == [
        (Syndrome.COMMUNICATION_HANG, Cause.CONNECTION_STALLED),
    ]
    assert {str(one) for one in (found[0].component, *found[0].alternatives)} == {"nic h3/0", "nic h4/0"}
    assert found[0].alarmed_s - AT_S < 1.5


def test_without_retransmissions_a_sender_may_not_be_looking():
    """A NIC that counts and has sent nothing again is not accused: the process computes, and looks later."""
    assert judged(JOBS["ring"], fault(SimFaultKind.PATH_RATE, factor=0.0, peer=4)) == []


class _ByHand:
    """Two ranks with a connection each way; the detector gets a window of each host every tenth of a second."""

    def __init__(self, counts=0, owed=0, sending=(0, 1)):
        self.detector, self.tick, self.messages, self.progress_s = Detector(), 0, 0, 0.0
        self.counts, self.owed, self.sending = counts, owed, sending

    def go(self, seconds, *, moving=True, state="running", heard=(0, 1)):
        """Have work outstanding for so long; returns what is said. Hosts that are not `heard` report nothing."""
        said = []
        for _ in range(round(10 * seconds)):
            self.tick += 1
            self.messages += moving
            if self.counts is not None:
                self.counts += not moving
            self.progress_s = self._now_s() if moving else self.progress_s
            for rank in heard:
                self.detector.ingest_window(self._window(rank, state))
            said += self.detector.evaluate(self._now_s())
        return said

    def _now_s(self):
        return 100.0 + 0.1 * self.tick

    def _window(self, rank, state):
        out = conn(rank, 1 - rank)
        if rank in self.sending:
            out = conn(rank, 1 - rank, messages=self.messages, outstanding=1, progress_s=self.progress_s)
            out = replace(out, state="transfer", state_since_s=self.progress_s, owed=self.owed)
        process = RankRecord("job", rank, f"h{rank}", 100 + rank, state if rank else "running")
        nics = [NicRecord(f"h{rank}/0", "linkup", retransmits=self.counts)]
        whole = {"comms": [comm()], "ranks": [process], "conns": [out], "nics": nics}
        return window(f"h{rank}", self.tick, self._now_s(), **whole)


def test_a_stall_is_measured_by_the_jobs_own_past():
    """A job that has stood still and gone on may do so again for three times as long, and not for longer."""
    job = _ByHand()
    assert job.go(12) + job.go(0.9, moving=False) + job.go(1) + job.go(2, moving=False) == []
    assert job.go(10) + job.go(5, moving=False) + job.go(1) == []
    found = job.go(17, moving=False)
    assert {one.cause for one in found} == {Cause.CONNECTION_STALLED}
    assert found[0].alarmed_s - found[0].onset_s == pytest.approx(15.0, abs=0.2)


def test_a_stopped_process_is_named_rather_than_its_connections():
    """Work of a stopped process stays outstanding, because nobody looks at it."""
    job = _ByHand()
    assert job.go(12) == []
    found = job.go(3, moving=False, state="stopped")
    assert [(str(one.component), one.cause) for one in found] == [("rank job:1", Cause.PROCESS_STOPPED)]


def test_a_silent_host_is_named_rather_than_its_connections():
    """What others send to a host that has crashed gets no answer."""
    job = _ByHand()
    assert job.go(12) == []
    found = job.go(3, moving=False, heard=(0,))
    assert [(str(one.component), one.cause) for one in found] == [("host h1", Cause.HOST_SILENT)]


def test_a_host_that_alone_sends_may_be_silent_while_its_agent_restarts():
    """Nobody else sees whether it goes on: it is named once its agent should have been back."""
    job = _ByHand(sending=(1,))
    assert job.go(12) + job.go(2.4, moving=False, heard=(0,)) == []
    found = job.go(0.5, moving=False, heard=(0,))
    assert [(str(one.component), one.cause) for one in found] == [("host h1", Cause.HOST_SILENT)]


def test_where_nics_do_not_count_the_ranks_are_alternatives():
    """Nobody can tell a dead path from a process that does not look; it is said after half a minute."""
    job = _ByHand(counts=None)
    assert job.go(12) + job.go(29, moving=False) == []
    found = job.go(3, moving=False)
    assert {"rank job:0", "rank job:1"} <= {str(other) for one in found for other in one.alternatives}


def test_a_program_that_looks_in_vain_is_evidence_enough():
    """What a process looks for and does not find is not there, whether or not NICs count."""
    job = _ByHand(counts=None, owed=1)
    assert job.go(12) == []
    found = job.go(2, moving=False)
    assert {one.cause for one in found} == {Cause.CONNECTION_STALLED}
    assert not [other for one in found for other in one.alternatives if other.kind == "rank"]


def test_an_exit_without_a_known_code_is_no_failure():
    """A process that has ended is not blamed where nobody knows how it did."""
    detector = Detector()
    for tick in range(1, 30):
        state = "running" if tick < 10 else "exited"
        for rank in range(2):
            process = RankRecord("job", rank, f"h{rank}", 100 + rank, state if rank else "running")
            detector.ingest_window(window(f"h{rank}", tick, 0.1 * tick, comms=[comm()], ranks=[process]))
        assert detector.evaluate(0.1 * tick) == []
