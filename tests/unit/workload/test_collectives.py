"""The ranks of a `collectives` job: how they check, what they keep, how they fail."""

import os
import resource

import pytest

from c4bench.collective.communicator import Communicator
from c4bench.collective.endpoint_context import RankProcess
from c4bench.collective.recorder import Recorder
from c4bench.model.fabric import Nic
from c4bench.model.telemetry import Member
from c4bench.workload.collectives import Call, Case, Deviation, Group, Runner
from tools.loopback import LoopbackPort, Network

ALONE = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "barrier")


class Alarm:
    """Never rings."""

    def __init__(self):
        self.fd = os.eventfd(0)

    def failure(self):
        return None

    def close(self):
        os.close(self.fd)


class Solitude:
    """The rendezvous of a single rank."""

    def __init__(self):
        self.failures = []

    def enter(self, _comm, _seats):
        pass

    def leave(self, _comm):
        pass

    def exchange(self, _comm, _key, _rank, _size, payload, _timeout_s):
        return [payload]

    def fail(self, comm, _failure, _sender):
        self.failures.append(comm)

    def failure_signal(self, _comm):
        return Alarm()

    def route(self, flows):
        return [0] * len(flows)

    def release(self, flows):
        pass


class Overrun(Communicator):
    """Writes an item too many."""

    def all_reduce(self, array, _op="sum"):
        array.base[array.size + 3] = 1


class Careless(Communicator):
    """Changes what it should only read, and forgets to write."""

    def all_to_all(self, _target, source):
        source[0] += 1


class Rank:
    """A runner and what it has connected; `kind` is the communicator it gets."""

    def __init__(self, folder):
        self.kind = Communicator
        self.connected = []
        self.rendezvous = Solitude()
        self.runner = Runner(0, self.connect)
        nic = Nic("h0", 0, "dev", "net", "::1", 1e10)
        network = Network()
        recorder = Recorder(folder / "ring", "job", 0)
        self.process = RankProcess("job", (nic,), self.rendezvous, recorder, lambda _: LoopbackPort(network))

    def connect(self, name, options):
        self.connected.append(name)
        return self.kind(name, 0, [Member(0, "h0", ("h0/0",))], self.process, options)

    def __call__(self, *calls, **rest):
        return self.runner.run(len(self.connected), Case(calls, **rest))


@pytest.fixture
def rank(tmp_path):
    return Rank(tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "int64"])
@pytest.mark.parametrize("kind", ALONE)
def test_every_array_of_a_call_is_checked_whole(rank, kind, dtype):
    """A call's check covers every element, inputs too, and three guards on either side."""
    outcome = rank(Call(kind, dtype, 1009))
    assert outcome.raised is None
    assert outcome.exact == outcome.checked
    arrays = {"barrier": 0, "all_reduce": 1, "broadcast": 1, "reduce": 1}.get(kind, 2)
    assert outcome.checked == arrays * (1009 + 6)


@pytest.mark.parametrize("count", [0, 1, 1009])
def test_an_item_written_beside_an_array_is_noticed(rank, count):
    """A write past an array's end is counted as a wrong element."""
    rank.kind = Overrun
    outcome = rank(Call("all_reduce", count=count))
    assert outcome.checked - outcome.exact == 1


def test_input_that_changed_and_output_that_is_missing_are_noticed(rank):
    """One element of the input, and every one of the output."""
    rank.kind = Careless
    outcome = rank(Call("all_to_all", "int64", 100))
    assert outcome.checked - outcome.exact == 1 + 100


def test_a_corrupted_element_is_noticed(rank):
    """One corrupted element is counted as wrong, in every collective."""
    outcome = rank(Call("all_gather", "bfloat16", 127, corrupt=True))
    assert outcome.checked - outcome.exact == 1


def test_communicators_are_kept_until_one_is_fresh(rank):
    """The same options find the same communicator, splits included; other options, or `fresh`, make another."""
    group = Group((0,), (0,))
    own = Call("all_reduce", group=0)
    for _ in range(2):
        assert rank(own, groups=(group,)).exact == 7
    assert rank.connected == ["case0"]
    assert len(rank.runner._kept) == 2
    rank(own, groups=(group,), options={"window": 2})
    rank(own, groups=(group,), fresh=True)
    assert rank.connected == ["case0", "case1", "case2"]
    assert len(rank.runner._kept) == 2


def test_a_rank_outside_a_group_leaves_its_calls_out(rank):
    """Color None: no communicator, no array, nothing checked."""
    assert rank(Call("all_reduce", group=0), groups=(Group((None,), (0,)),)).checked == 0


def test_a_failure_is_reported_told_and_over(rank):
    """An exception is returned with its type, the members are notified, and the next case starts fresh."""
    raised = rank(Call("all_reduce", "int8")).raised
    assert raised.type == "UsageError"
    assert "int8" in raised.message
    assert rank.rendezvous.failures == ["case0"]
    assert rank(Call("all_reduce")).raised is None
    assert rank.connected == ["case0", "case1"]


def test_a_deviation_is_one_ranks_own(rank):
    """A rank's deviation replaces its calls; another rank's does not affect it."""
    for deviant, checked in ((0, 0), (1, 7)):
        assert rank(Call("all_reduce"), deviations={deviant: Deviation(calls=())}).checked == checked


def test_memory_is_limited_for_one_case(rank):
    """A rank that may map nothing more fails for want of memory, and may map as before afterwards."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    large = Call("all_reduce", count=64 << 20)
    assert rank(large, deviations={0: Deviation(memory_bytes=1 << 20)}).raised.type == "MemoryError"
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_memory_that_no_nic_may_write_is_read_only(rank):
    """What a `read_only` call gives holds the payload, and cannot be written."""
    seen = []

    class Looking(Communicator):
        def all_gather(self, target, source):
            seen.append((source.flags.writeable, target.flags.writeable))
            super().all_gather(target, source)

    rank.kind = Looking
    outcome = rank(Call("all_gather", count=100, read_only=True))
    assert outcome.exact == outcome.checked == 212
    assert seen == [(False, True)]
