"""Jobs whose ranks record what they call in one communicator and their queue pairs in another, as MPI programs do."""

import pytest
from c4d_telemetry import comm, conn, op, remade, window
from msgspec.structs import replace

from c4bench.c4d.detector import Detector
from c4bench.model.diagnosis import Cause, Component
from c4bench.model.step import StepOp
from c4bench.model.telemetry import ArrivalRecord, NicRecord, RankRecord
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob

JOB = SimJob(8, (StepOp("all_reduce", 64 << 20, 0.05),))
AT_S = 6.0


def foreign(windows, now_s, again):
    """The windows as foreign programs fill them; NICs of the hosts `again` retransmit since the fault."""
    for one in windows:
        comms = [
            each
            for known in one.comms
            for each in (
                replace(known, members=tuple(replace(member, nics=(), seat=member.rank) for member in known.members)),
                replace(known, comm=f"{known.comm}/verbs"),
            )
        ]
        ops = [replace(call, awaits=(), algorithm="") for call in one.ops]
        conns = [
            replace(
                each,
                comm=f"{each.comm}/verbs",
                wait_credit_s=0.0,
                wait_data_s=0.0,
                owed=min(1, each.outstanding),
                state="transfer" if each.outstanding else "idle",
            )
            for each in one.conns
        ]
        sent_again = int(10 * (now_s - AT_S)) if one.host in again and now_s > AT_S else 0
        nics = (NicRecord(f"{one.host}/0", "linkup", retransmits=sent_again),)
        yield remade(one, comms=comms, ops=ops, conns=conns, nics=nics, arrivals=())


def judged(*faults, again=(), duration_s=10.0):
    """What C4D says of a simulated job."""
    detector, found = Detector(), []
    for tick in simulate(JOB, faults, duration_s):
        for one in foreign(tick.windows, tick.time_s, again):
            detector.ingest_window(one)
        found += detector.evaluate(tick.time_s)
    assert detector.dropped == 0
    return found


def test_a_healthy_job_says_nothing():
    """Queue pairs that are idle while ranks compute are no finding."""
    assert judged() == []


def test_a_dead_path_is_named_by_the_operation_that_stands_still():
    """Ranks wait in an operation, whose data is on the queue pairs that get no answer: said once, with both ends."""
    found = judged(SimFault(SimFaultKind.PATH_RATE, 3, AT_S, factor=0.0, peer=4), again=("h3",))
    assert [one.cause for one in found] == [Cause.CONNECTION_STALLED]
    assert {str(one) for one in (found[0].component, *found[0].alternatives)} == {"nic h3/0", "nic h4/0"}
    assert {side.profiling_name for side in found[0].operations} == {"all_reduce"}
    assert found[0].alarmed_s - AT_S < 2.0


def test_a_slow_nic_is_named():
    """The delay matrix has queue pairs, and the job's period its operations."""
    first = judged(SimFault(SimFaultKind.NIC_RATE, 3, AT_S, factor=0.5, side="tx"))[0]
    assert (first.component, first.cause) == (Component("nic", "h3/0", "tx"), Cause.TRANSFER_SLOW)


class ByHand:
    """Two ranks that call one operation after the other, each 0.2 s long; the last one does not end.

    All that they have sent is `delivered`, whether or not it completes; else what arrives is not counted.
    """

    def __init__(self, *, delivered=False):
        self.detector, self.tick, self.delivered = Detector(), 0, delivered

    def go(self, seconds, *, calls=True, moving=True, owed=0, both=True):
        """Go on for so long; returns what is said. Without `calls` the last operation goes on, of rank 0 or `both`."""
        said = []
        for _ in range(round(10 * seconds)):
            self.tick += 1
            now_s = 100 + self.tick / 10
            self.seq = self.tick // 2 if calls else self.seq
            self.moved_s = now_s if moving else self.moved_s
            for rank in range(2):
                one = op(
                    rank, self.seq, 100 + self.seq / 5, 0.0 if rank == 0 or both or calls else 100.1 + self.seq / 5
                )
                self.detector.ingest_window(self._window(rank, now_s, one, owed))
            said += self.detector.evaluate(now_s)
        return said

    def _window(self, rank, now_s, call, owed):
        known, busy = comm(), comm(name="verbs")
        world = replace(known, members=tuple(replace(m, nics=(), seat=m.rank) for m in known.members))
        seated = replace(busy, members=tuple(replace(m, seat=m.rank) for m in busy.members))
        out = conn(rank, 1 - rank, messages=int(10 * (self.moved_s - 100)), outstanding=1, progress_s=self.moved_s)
        out = replace(out, comm="verbs", state="transfer" if owed else "idle", owed=owed)
        nics = [NicRecord(f"h{rank}/0", "linkup", retransmits=0)]
        process = [RankRecord("job", rank, f"h{rank}", 100 + rank, "running")]
        ends = "verbs", rank, 1 - rank, f"h{1 - rank}/0", f"h{rank}/0", 7, out.messages + 1
        arrived = [ArrivalRecord(*ends)] if self.delivered else []
        records = {"comms": [world, seated], "ranks": process, "ops": [call], "conns": [out], "nics": nics}
        records["arrivals"] = arrived
        return window(f"h{rank}", self.tick, now_s, **records)


def test_a_long_operation_whose_data_moves_is_no_hang():
    """A rank may be inside for longer than ever before, as long as its queue pairs carry data."""
    assert ByHand().go(6) == []
    job = ByHand()
    assert job.go(6) + job.go(10, calls=False, both=False) == []


@pytest.mark.parametrize(("owed", "causes"), [(0, set()), (1, {Cause.CONNECTION_STALLED})])
def test_work_without_a_completion_accuses_no_network(owed, causes):
    """Requests that are never completed for the program may have been carried long ago, unless it waits for them."""
    job = ByHand()
    assert job.go(6) == []
    found = job.go(4, calls=False, moving=False, owed=owed)
    assert {one.cause for one in found if one.syndrome == "communication_hang"} == causes


def test_who_looks_in_vain_for_what_has_arrived_misses_acknowledgements():
    """The way back is suspected, or the senders that may look no more; nobody is stuck for sure."""
    job = ByHand(delivered=True)
    assert job.go(6) == []
    (found,) = job.go(4, calls=False, moving=False, owed=1)
    assert found.cause == Cause.CONNECTION_STALLED
    ranks = {Component("rank", f"job:{rank}") for rank in range(2)}
    assert ranks < {found.component, *found.alternatives}
    assert found.component.kind != "rank"
