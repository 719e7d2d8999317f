"""Repeated reading of a telemetry file."""

import tempfile
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from c4bench.collective.recorder import Recorder
from c4bench.collective.ring_layout import MAX_RANKS, ConnName
from c4bench.collective.ring_reader import TelemetryReader, read_telemetry_file
from c4bench.model.telemetry import CommRecord, Member
from c4bench.model.window import STATES, Numbering

MEMBERS = tuple(Member(rank, f"h{rank}", (f"h{rank}/0",)) for rank in range(2))
STEP_NS = 10**8


class Rank:
    """Records what it is told to; time goes on with each step."""

    def __init__(self, path):
        self.recorder = Recorder(path, "job", 0)
        self.now_ns = 10**18
        self.job = 0
        self.comms, self.running, self.sent, self.arrived = {}, [], [], []

    def do(self, step, what):
        """One step; `what` is a number that it takes as it likes."""
        self.now_ns += STEP_NS
        if step == "communicator" or not self.comms:
            self.job += 1
            self.comms[self.recorder.communicator(CommRecord(f"c{self.job}", "job", MEMBERS), 0)] = 0
            return
        comm = sorted(self.comms)[what % len(self.comms)]
        getattr(self, step)(comm, what)

    def release(self, comm, _):
        del self.comms[comm]
        self.recorder.release(comm)
        for kept in (self.running, self.sent, self.arrived):
            kept[:] = [(index, writer) for index, writer in kept if index != comm]

    def enter(self, comm, what):
        # More than a ring holds, now and then.
        for _ in range(1 + what % 80):
            op = self.recorder.operation(comm, self.comms[comm], "barrier", "ring", "uint8", what, self.now_ns)
            self.comms[comm] += 1
            op.awaiting(what % MAX_RANKS, still=True)
            op.store()
        self.running.append((comm, op))

    def finish(self, comm, _):
        for index, op in self.running:
            if index == comm:
                op.awaits = 0
                op.start(self.now_ns - 1)
                op.finish(self.now_ns)

    def connect(self, comm, what):
        end = self.recorder.connection(ConnName(comm, 1, "h0/0", "h1/0", what), 7, self.now_ns)
        self.sent.append((comm, end))
        self.arrived.append((comm, self.recorder.arrivals(ConnName(comm, 1, "h1/0", "h0/0", what))))

    def transfer(self, comm, what):
        for index, end in self.sent:
            if index == comm:
                end.post(self.now_ns)
                end.set_state(STATES[what % len(STATES)], what % 9, 1, self.now_ns)
        for index, end in self.arrived:
            if index == comm:
                end.arrived(self.now_ns)
                end.store()


STEPS = ("communicator", "release", "enter", "finish", "connect", "transfer")


def untold(ring):
    """The same without what depends on when it was read before."""
    conns = [msgspec.structs.replace(conn, posted=0, posted_sum_ns=0) for conn in ring.conns]
    arrivals = [msgspec.structs.replace(end, arrived=0, arrived_sum_ns=0) for end in ring.arrivals]
    return ring.comms, ring.ops, conns, arrivals


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2000), st.sampled_from((None, 0, 1, 3))), max_size=60))
def test_what_was_read_before_changes_nothing(steps):
    """A reader that decodes only changes gives the same records as a new reader, also when the clock is set back."""
    with tempfile.TemporaryDirectory() as folder:
        rank = Rank(Path(folder) / "ring")
        kept = TelemetryReader(rank.recorder.path, Numbering())
        for step, what, back in steps:
            rank.do(step, what)
            if back is not None:
                now_s, since_s = rank.now_ns / 1e9, (rank.now_ns - back * STEP_NS) / 1e9
                new = TelemetryReader(rank.recorder.path, Numbering())
                assert untold(kept.snapshot(now_s, since_s)) == untold(new.snapshot(now_s, since_s))
        rank.recorder.close()


def test_an_operation_may_await_the_last_rank_there_can_be(tmp_path):
    """A record lists exactly the ranks that are waited for."""
    with Recorder(tmp_path / "r", "job", 0) as recorder:
        comm = recorder.communicator(CommRecord("c", "job", MEMBERS), 0)
        op = recorder.operation(comm, 0, "barrier", "ring", "uint8", 0, 1)
        for rank in (0, 7, 8, MAX_RANKS - 1):
            op.awaiting(rank, still=True)
        op.store()
        assert read_telemetry_file(tmp_path / "r").ops[0].awaits == (0, 7, 8, MAX_RANKS - 1)
        op.awaiting(MAX_RANKS - 1, still=False)
        op.store()
        assert read_telemetry_file(tmp_path / "r").ops[0].awaits == (0, 7, 8)


def test_what_was_old_is_recent_again_when_the_clock_is_set_back(tmp_path):
    """A finished operation that was left out as too old is read again if the time asked for is before its end."""
    with Recorder(tmp_path / "r", "job", 0) as recorder:
        comm = recorder.communicator(CommRecord("c", "job", MEMBERS), 0)
        recorder.operation(comm, 0, "barrier", "ring", "uint8", 0, 10**9).finish(2 * 10**9)
        reader = TelemetryReader(tmp_path / "r", Numbering())
        assert [len(reader.snapshot(since_s=since_s).ops) for since_s in (0.0, 3.0, 1.5, 2.0, 2.5)] == [1, 0, 1, 1, 0]
