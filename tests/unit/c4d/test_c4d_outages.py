"""What a resilient job goes on without is one finding, however many ranks say so and whatever follows from it."""

from c4d_telemetry import MIX, comm, conn, op, ticks, window

from c4bench.c4d.detector import Detector
from c4bench.model.diagnosis import Cause, Component, NetworkLoss, Syndrome
from c4bench.model.recording import LossReported
from tools.sim.model import SimFault, SimFaultKind, SimJob

_NIC = Component("nic", "h1/0")


class _Pair:
    """Two ranks that send to each other; `messages` is how many each has sent."""

    def __init__(self):
        self.detector = Detector()
        self._tick = 0
        self._messages = 0

    def step(self, *, sent=0):
        """A window of either host; returns what the detector then says."""
        self._tick += 1
        self._messages += sent
        end_s = 100.0 + self._tick / 10
        for rank in range(2):
            way = conn(rank, 1 - rank, messages=self._messages, progress_s=end_s - 0.02 if sent else 0.0)
            done = op(rank, self._tick, end_s - 0.05, end_s - 0.01)
            self.detector.ingest_window(window(f"h{rank}", self._tick, end_s, comms=[comm()], ops=[done], conns=[way]))
        return self.detector.evaluate(end_s)

    def lose(self, rank, component=_NIC, late_s=0.0):
        """A rank says that it goes on without it."""
        self.hear(NetworkLoss(rank, component, 100.0 + self._tick / 10 - late_s))

    def hear(self, loss, job="job", comm="world"):
        """Somebody says so."""
        self.detector.ingest(LossReported(100.0 + self._tick / 10, job, comm, loss))


def test_all_ranks_of_a_lost_nic_make_one_diagnosis():
    """Every rank tells what it lost; people hear of it once, with its name and when it began."""
    pair = _Pair()
    pair.step(sent=1)
    pair.lose(0)
    pair.lose(1)
    (found,) = pair.step()
    assert (found.syndrome, found.cause) == (Syndrome.COMMUNICATION_SLOW, Cause.CONNECTION_LOST)
    assert found.component == _NIC
    assert abs(found.onset_s - 100.1) < 0.2
    pair.lose(0, Component("path", "h0/0>h1/0"))
    assert pair.step() == []


def test_nic_that_came_back_can_be_lost_again():
    """Once messages are acknowledged by way of it a NIC is well; its next loss is a new finding; late word is not."""
    pair = _Pair()
    pair.step(sent=1)
    pair.lose(0)
    assert len(pair.step()) == 1
    pair.step(sent=1)
    pair.lose(1, late_s=0.3)
    assert pair.step() == []
    pair.lose(1)
    assert len(pair.step()) == 1


def test_word_from_strangers_is_not_heeded():
    """A loss in a communicator nobody knows, or of a rank that is not in it, says nothing."""
    pair = _Pair()
    pair.step(sent=1)
    pair.hear(NetworkLoss(0, _NIC, 100.0), comm="other")
    pair.hear(NetworkLoss(0, _NIC, 100.0), job="other")
    pair.lose(7)
    assert pair.step() == []


def test_slowness_of_the_other_nics_is_no_finding_of_its_own():
    """A NIC that is slow is named, unless its host has lost another, whose share it carries then."""
    job = SimJob(16, MIX, ranks_per_host=2)
    fault = SimFault(SimFaultKind.NIC_RATE, 2, at_s=2.5, factor=0.5, side="tx")

    def named(*, lost):
        detector, found = Detector(), []
        for tick in ticks(job, (fault,), 5.0):
            for each in tick.windows:
                detector.ingest_window(each)
            if lost and tick.time_s > 2.5:
                (world,) = {record.comm for each in tick.windows for record in each.comms}
                loss = NetworkLoss(0, Component("nic", "h1/7"), tick.time_s)
                detector.ingest(LossReported(tick.time_s, job.name, world, loss))
            found += detector.evaluate(tick.time_s)
        return [(one.cause, one.component.name) for one in found]

    assert named(lost=False) == [(Cause.TRANSFER_SLOW, "h1/0")]
    assert named(lost=True) == [(Cause.CONNECTION_LOST, "h1/7")]


def test_a_report_that_is_late_hides_no_other():
    """Of two reports at once, one is of a loss that is over, the other is new: the new one is a finding."""
    pair = _Pair()
    pair.step(sent=1)
    pair.lose(0)
    assert len(pair.step()) == 1
    pair.step(sent=1)
    pair.lose(1, late_s=0.3)
    pair.lose(0, Component("nic", "h0/1"))
    (found,) = pair.step()
    assert found.component == Component("nic", "h0/1")


def test_what_cannot_be_told_apart_makes_a_finding_less_sure():
    """Alternatives of a rank's report are those of the finding, which says whose report it is."""
    pair = _Pair()
    pair.step(sent=1)
    other = Component("nic", "h0/0")
    pair.hear(NetworkLoss(1, _NIC, 100.1, (other,)))
    (found,) = pair.step()
    assert found.alternatives == (other,)
    assert found.confidence < 0.7
    assert found.evidence[0].startswith("rank 1 and those")
    assert "h0/0" in found.evidence[1]
