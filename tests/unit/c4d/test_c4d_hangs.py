"""Hangs as the master sees them: whose fault, when sure, and when over."""

import msgspec
import pytest
from c4d_telemetry import MIX, comm, conn, drive, op, window
from night_cases import at_night

from c4bench.c4d.detector import Detector
from c4bench.model.diagnosis import Component, Syndrome
from c4bench.model.step import StepOp
from c4bench.model.telemetry import CommRecord, Member, RankRecord
from tools.sim.model import SimFault, SimFaultKind, SimJob

_RANKS = 4
_STEP_S = 0.1


def _process(rank, state="running", code=None, pid=100):
    return RankRecord("job", rank, f"h{rank}", pid + rank, state, code)


class _Job:
    """Four ranks whose windows are written by hand, one operation a window."""

    def __init__(self, detector):
        self.detector = detector
        self.tick = 0
        self.seq = -1
        self.began_s = 0.0
        self.lag_s = 0.0

    def step(self, *, state=None, absent=(), inside=False, silent=(), outstanding=None):
        """One window of every host; returns what the detector then says."""
        self.tick += 1
        end_s = 100.0 + self.tick * _STEP_S
        for rank in set(range(_RANKS)) - set(silent):
            ops = [] if rank in absent else [self._op(rank, inside)]
            stuck = (outstanding or {}).get(rank, 0)
            out = conn(rank, (rank + 1) % _RANKS, messages=self.seq * 6, outstanding=stuck, progress_s=self.began_s)
            ranks = [_process(rank, *(state or {}).get(rank, ()))]
            whole = window(f"h{rank}", self.tick, end_s, comms=[comm(_RANKS)], ranks=ranks, ops=ops, conns=[out])
            self.detector.ingest_window(whole)
        return self.detector.evaluate(end_s + self.lag_s)

    def _op(self, rank, inside):
        return op(rank, self.seq, self.began_s, 0.0 if inside else self.began_s + 0.02)

    def healthy(self, windows=30):
        """Operations that all finish."""
        for _ in range(windows):
            self.next()
            assert self.step() == []

    def next(self):
        """The next operation begins in the coming window."""
        self.seq += 1
        self.began_s = 100.0 + self.tick * _STEP_S + 0.05


@pytest.fixture
def job():
    made = _Job(Detector())
    made.healthy()
    return made


def _named(found):
    return [(one.syndrome, str(one.component)) for one in found]


_RANK_2 = (Syndrome.NON_COMMUNICATION_HANG, "rank job:2")


def _until(job, **step):
    """Steps until the detector speaks, at most twenty."""
    for _ in range(20):
        if found := job.step(**step):
            return found
    return []


def test_rank_that_never_enters_is_named_within_the_promise(job):
    """The rank absent from the operation in which the others stand is the sink, alarmed within a second."""
    job.next()
    found = _until(job, absent={2}, inside=True)
    assert _named(found) == [_RANK_2]
    assert job.began_s <= found[0].onset_s < found[0].alarmed_s <= job.began_s + 1.0
    assert _until(job, absent={2}, inside=True) == [], "each hang is one finding"


def test_alarm_keeps_its_promise_however_late_windows_are_seen(job):
    """The last window before the bar ends just short of it, and each waits for the next judgement."""
    job.next()
    job.began_s += 0.002
    job.lag_s = 0.1
    (found,) = _until(job, absent={2}, inside=True)
    assert found.alarmed_s <= job.began_s + 1.0 <= found.named_s


def test_stall_shorter_than_a_second_is_no_finding(job):
    """An operation that goes on just before the second is over was benign, though the alarm was due before."""
    job.next()
    for _ in range(10):
        assert job.step(absent={2}, inside=True) == []
    job.healthy()


def test_what_may_be_what_is_named_is_no_finding_more(job):
    """A NIC is named; that one of its paths stands still alone a little later says nothing new."""
    job.next()
    assert _named(_until(job, inside=True, outstanding={1: 2, 2: 1})) == [(Syndrome.COMMUNICATION_HANG, "nic h2/0")]
    assert _until(job, inside=True, outstanding={1: 2}) == []


def test_killed_rank_is_named_at_once_and_its_victims_are_not(job):
    """Neighbours that exit with a transport error later change nothing."""
    job.next()
    found = _until(job, absent={2}, inside=True, state={2: ("killed", -9)})
    assert _named(found) == [_RANK_2]
    assert found[0].named_s <= job.began_s + 0.4
    victims = {2: ("killed", -9), 1: ("exited", 1), 3: ("exited", 1)}
    assert _until(job, absent={2}, inside=True, state=victims) == []


def test_job_that_is_stopped_as_a_whole_is_no_hang(job):
    """All processes ending within two windows is somebody ending the job."""
    job.next()
    state = dict.fromkeys(range(_RANKS), ("killed", -15))
    assert _until(job, inside=True, state=state) == []


def test_clean_end_is_no_hang(job):
    """Processes that exit with code 0 after their last operation are finished, not dead."""
    assert _until(job, state=dict.fromkeys(range(_RANKS), ("exited", 0))) == []


def test_clean_exit_that_others_wait_for_is_a_hang(job):
    """A rank that leaves early with code 0 still hangs those who enter the next operation."""
    job.next()
    assert _named(_until(job, absent={2}, inside=True, state={2: ("exited", 0)})) == [_RANK_2]


@pytest.mark.parametrize("end", [("exited", 1), ("killed", -6)], ids=["exits", "aborts"])
def test_sender_that_gave_up_on_a_dead_path_is_a_victim(job, end):
    """An exit after its own messages stood unacknowledged for long is the path's doing, also by abort(3)."""
    job.next()
    for _ in range(3):
        assert job.step(inside=True, outstanding={1: 2}) == []
    found = _until(job, inside=True, outstanding={1: 2}, state={1: end})
    assert _named(found) == [(Syndrome.COMMUNICATION_HANG, "nic h1/0")]


def test_several_dead_connections_of_a_nic_name_the_nic(job):
    """Messages unacknowledged both to and from one NIC, with every process running, are that NIC's."""
    job.next()
    found = _until(job, inside=True, outstanding={1: 2, 2: 1})
    assert _named(found) == [(Syndrome.COMMUNICATION_HANG, "nic h2/0")]


def test_silent_host_is_named_as_the_host(job):
    """When the awaited rank's agent went silent with it, the host is what is missing."""
    job.next()
    found = _until(job, inside=True, silent={2})
    assert [one.component for one in found] == [Component("host", "h2")]


def test_host_that_falls_silent_inside_an_operation_is_named(job):
    """A host that crashes in the middle, with messages to it unacknowledged, is not its neighbour's path."""
    job.next()
    job.step(inside=True, outstanding={1: 2})
    found = _until(job, inside=True, silent={2}, outstanding={1: 2})
    assert [one.component for one in found] == [Component("host", "h2")]


def test_ranks_that_gave_up_on_a_silent_host_are_its_victims(job):
    """Everybody exits with an error a third of a second after a host was last heard of: the host is why."""
    job.next()
    for _ in range(4):
        job.step(inside=True, silent={2})
    found = _until(job, inside=True, silent={2}, state={0: ("exited", 1), 1: ("exited", 1), 3: ("exited", 1)})
    assert _named(found) == [(Syndrome.COMMUNICATION_HANG, "host h2")]


def test_a_silent_host_explains_all_of_its_ranks():
    """Also the one whose peer began to wait for it only later, in a communicator that is not yet known to stand."""
    world = CommRecord("world", "job", tuple(Member(rank, f"h{rank}", (f"h{rank}/0",), rank) for rank in range(3)))
    pair = CommRecord("pair", "job", (Member(0, "h2", ("h2/0",), 3), Member(1, "h3", ("h3/0",), 4)))
    places = {0: ("h0", world, 0), 1: ("h1", world, 1), 2: ("h2", world, 2), 3: ("h2", pair, 0), 4: ("h3", pair, 1)}
    detector, said = Detector(), []
    for tick in range(1, 40):
        for host in ("h0", "h1", "h2", "h3") if tick < 20 else ("h0", "h1", "h3"):
            here = {rank: (of, member) for rank, (at, of, member) in places.items() if at == host}
            ops = []
            for of, member in here.values():
                # The pair's next operation begins half a second after the others stand still.
                seq = min(tick, 25 if of is pair and tick >= 25 else 20)
                entered_s = seq / 10 - 0.05
                finished_s = 0.0 if seq == (25 if of is pair else 20) else entered_s + 0.01
                ops.append(op(member, seq, entered_s, finished_s, of.comm))
            comms = [of for of, _ in here.values()]
            ranks = [RankRecord("job", rank, host, 100 + rank, "running") for rank in here]
            detector.ingest_window(window(host, tick, tick / 10, comms=comms, ranks=ranks, ops=ops))
        said += detector.evaluate(tick / 10)
    assert [str(one.component) for one in said] == ["host h2"]


def test_many_silent_hosts_are_the_way_to_the_master(job):
    """When half of the agents cannot be heard nothing is known of them, and a host is not to blame for it."""
    job.next()
    job.step(inside=True)
    found = _until(job, inside=True, silent={1, 2})
    assert not any(one.component.kind == "host" for one in found)


def test_silence_alone_is_no_hang(job):
    """An agent that stops reporting while operations go on has nobody waiting for it."""
    for _ in range(20):
        job.next()
        assert job.step(silent={2}) == []


def test_hang_that_heals_can_be_found_again(job):
    """Once the job has moved on, the next hang of the same rank is a new finding."""
    job.next()
    assert _named(_until(job, absent={2}, inside=True)) == [_RANK_2]
    job.healthy(40)
    job.next()
    assert _named(_until(job, absent={2}, inside=True)) == [_RANK_2]


def test_what_moves_again_later_than_the_rest_is_no_finding_of_its_own():
    """Two communicators stand still for one NIC; when it is healed, one of them goes on a little before the other."""
    detector, said = Detector(), []
    other = msgspec.structs.replace(comm(_RANKS), comm="other")
    for tick in range(1, 80):
        end_s = tick / 10
        for rank in range(_RANKS):
            ops, conns = [], []
            for name, until in (("world", 50), ("other", 54)):
                still = 30 <= tick < until
                seq, began_s = (30, 2.95) if still else (tick, end_s - 0.05)
                ops.append(op(rank, seq, began_s, 0.0 if still else began_s + 0.02, name))
                stuck = 2 if still and (rank == 2 or (rank == 1 and name == "world")) else 0
                out = conn(rank, (rank + 1) % _RANKS, messages=6 * seq, outstanding=stuck, progress_s=began_s)
                conns.append(msgspec.structs.replace(out, comm=name))
            shown = {"comms": [comm(_RANKS), other], "ranks": [_process(rank)], "ops": ops, "conns": conns}
            detector.ingest_window(window(f"h{rank}", tick, end_s, **shown))
        said += detector.evaluate(end_s)
    assert _named(said) == [(Syndrome.COMMUNICATION_HANG, "nic h2/0")]


def test_restarted_process_ends_the_death():
    """A new process of a dead rank is alive, and its next death is a new finding."""
    job = _Job(Detector())
    job.healthy()
    assert _named(_until(job, state={2: ("killed", -9)})) == [_RANK_2]
    for _ in range(5):
        job.next()
        assert job.step(state={2: ("running", None, 900)}) == []
    assert _named(_until(job, state={2: ("killed", -9, 900)})) == [_RANK_2]


def test_slow_start_of_a_job_is_no_hang():
    """Before a job has shown its period nobody knows how long its first operation may take."""
    job = _Job(Detector())
    job.next()
    assert _until(job, absent={2}, inside=True) == []


def test_master_that_hears_nothing_says_nothing(job):
    """Time without windows is not time without progress."""
    job.next()
    job.step(inside=True)
    assert job.detector.evaluate(500.0) == []


@pytest.mark.parametrize(
    ("kind", "factor", "name"),
    [(SimFaultKind.NIC_RATE, 0.25, "nic h1/0 (rx)"), *at_night((SimFaultKind.COMPUTE, 1.5, "rank job:1"))],
)
def test_slowness_is_found_again_after_it_healed(kind, factor, name):
    """A NIC that is slow twice, with health between, is two findings; a rank likewise."""
    faults = [SimFault(kind, 1, at_s, at_s + 2.0, factor, "rx") for at_s in (2.5, 6.5)]
    assert [str(one.component) for one in drive(SimJob(6, MIX, seed=11), faults, 9.5)] == [name] * 2


def test_pure_ring_names_both_ends_of_a_slow_path():
    """With ring traffic alone a slow receiver cannot be told from the sender before it."""
    job = SimJob(8, (StepOp("all_reduce", 4 << 20, 0.02),), seed=2)
    fault = SimFault(SimFaultKind.NIC_RATE, 5, 3.0, factor=0.25, side="rx")
    (found,) = drive(job, [fault], 6.0)
    assert {str(one) for one in found.suspects} == {"nic h4/0 (tx)", "nic h5/0 (rx)"}
    assert found.confidence < 0.7


def test_diagnosis_survives_the_wire():
    """A diagnosis encodes to JSON and back unchanged."""
    (found,) = drive(SimJob(4, MIX), [SimFault(SimFaultKind.KILLED, 1, 3.0)], 5.0)
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found


def test_closed_communicator_hangs_nobody(job):
    """A communicator that is closed before anyone saw its last operation end is no hang, whatever goes on elsewhere."""
    job.healthy()
    job.next()
    assert job.step(inside=True, outstanding={0: 3}) == []
    for number in range(30):
        job.tick += 1
        end_s = 100.0 + job.tick * _STEP_S
        for rank in range(_RANKS):
            other = op(rank, number, end_s - 0.05, end_s - 0.03, name="next")
            comms = [msgspec.structs.replace(comm(_RANKS), comm="next")]
            job.detector.ingest_window(
                window(f"h{rank}", job.tick, end_s, comms=comms, ranks=[_process(rank)], ops=[other])
            )
        assert job.detector.evaluate(end_s) == []


def test_what_stands_still_is_said_once_however_much_goes_on_beside_it():
    """Two ranks go on in a communicator of their own while all wait for one that is stopped: one finding, not many."""
    detector, said = Detector(), []
    pair = CommRecord("pair", "job", (Member(0, "h2", ("h2/0",), 2), Member(1, "h3", ("h3/0",), 3)))
    for tick in range(1, 60):
        now_s, still = tick / 10, tick > 20
        for rank in range(4):
            seq, entered_s = min(tick, 21), min(tick, 21) / 10 - 0.05
            own = op(rank, seq, entered_s, 0.0 if still else entered_s + 0.01)
            beside = [op(rank - 2, tick, now_s - 0.05, now_s - 0.04, "pair")] if rank > 1 else []
            state = "stopped" if still and rank == 1 else "running"
            detector.ingest_window(
                window(
                    f"h{rank}",
                    tick,
                    now_s,
                    comms=[comm(4), *([pair] if rank > 1 else [])],
                    ranks=[RankRecord("job", rank, f"h{rank}", 100 + rank, state)],
                    ops=[*([] if still and rank == 1 else [own]), *beside],
                )
            )
        said += detector.evaluate(now_s)
    assert [found.component.name for found in said] == ["job:1"]
