"""Ranks of one host exchange messages through shared memory, which takes the time that their GPUs' links would."""

import os
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from night_cases import at_night

from c4bench.collective.engine import Engine
from c4bench.collective.errors import CollectiveError
from c4bench.collective.gpu_links import GpuLinks, GpuLinksFile, GpuPair
from c4bench.collective.inside import SharedQueue
from c4bench.collective.ring_reader import read_telemetry_file
from c4bench.errors import UsageError
from c4bench.model.fabric import Inside
from c4bench.verbs.waiting import Ready
from tests.unit.collective.world import World, run_in_threads

# 8 Gbit/s is a byte a ns.
BYTE_A_NS = Inside(8e9, 2e-6)


@contextmanager
def links_file(path):
    """The links as whoever injects faults has them open."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        yield GpuLinksFile(descriptor, path)
    finally:
        os.close(descriptor)


@pytest.fixture
def world(tmp_path):
    """Two hosts with four ranks each, GPU g next to NIC g."""
    made = World(tmp_path, 8, nics=4, gpus=4)
    yield made
    made.close()


def values(rank, count):
    """Numbers of a rank whose sums are exact."""
    return (np.arange(count) % 1000 + 10_000 * rank).astype(np.float64)


@pytest.mark.parametrize(
    ("count", "nics", "resilient"), [(1, 4, False), (1003, 4, True), (30_011, 2, False), *at_night((40_003, 4, False))]
)
def test_collectives_are_exact(tmp_path, count, nics, resilient):
    """All collectives have the right result on each of eight ranks, through all NICs and inside both hosts."""
    world = World(tmp_path, 8, nics=nics, gpus=4, resilient=resilient)

    def work(comm):
        total, own = values(comm.rank, count), values(comm.rank, 8 * count)
        comm.all_reduce(total)
        part, gathered, swapped = np.empty(count), np.empty(8 * count), np.empty(8 * count)
        comm.reduce_scatter(part, own)
        comm.all_gather(gathered, values(comm.rank, count))
        comm.all_to_all(swapped, own)
        sent = values(comm.rank, count)
        comm.broadcast(sent, src=5)
        reduced = values(comm.rank, count)
        comm.reduce(reduced, dst=6)
        comm.barrier()
        return total, part, gathered, swapped, sent, reduced

    everything = world.run(work)
    whole = sum(values(rank, count) for rank in range(8))
    for rank, (total, part, gathered, swapped, sent, reduced) in enumerate(everything):
        span = slice(rank * count, (rank + 1) * count)
        assert (total == whole).all()
        assert (part == sum(values(other, 8 * count) for other in range(8))[span]).all()
        assert (gathered == np.concatenate([values(other, count) for other in range(8)])).all()
        assert (swapped == np.concatenate([values(other, 8 * count)[span] for other in range(8)])).all()
        assert (sent == values(5, count)).all()
        assert (reduced == (whole if rank == 6 else values(rank, count))).all()
    world.close()


def test_groups_of_ranks_and_single_messages(world):
    """A split by GPU, one by host, and a message between two ranks work as anywhere."""

    def work(comm):
        rail, host = comm.split(comm.rank % 4), comm.split(comm.rank // 4)
        sums = [np.array([float(comm.rank)]) for _ in range(2)]
        with rail, host:
            rail.all_reduce(sums[0])
            host.all_reduce(sums[1])
        message = np.array([float(comm.rank)])
        if comm.rank in (1, 2):
            (comm.send if comm.rank == 1 else comm.recv)(message, 3 - comm.rank)
        return [*(float(each[0]) for each in sums), float(message[0])]

    results = world.run(work)
    assert [result[0] for result in results] == [2.0 * (rank % 4) + 4 for rank in range(8)]
    assert [result[1] for result in results] == [6.0] * 4 + [22.0] * 4
    assert results[2][2] == 1.0


def test_each_channel_leaves_by_its_own_nic_and_the_rest_stays_inside(world):
    """A rank sends to the next host by its own NIC alone; its other messages go to the next GPU of its host."""

    def work(comm):
        comm.all_reduce(np.ones(1 << 18))
        comm.barrier()

    assert world.run(work) == [None] * 8
    for rank, number, gpu in ((rank, rank // 4, rank % 4) for rank in range(8)):
        conns = read_telemetry_file(world.path(rank)).conns
        ends = {(conn.source, conn.destination) for conn in conns if conn.messages}
        inside = (f"h{number}/gpu{gpu}", f"h{number}/gpu{(gpu + 1) % 4}")
        assert ends == {inside, (f"h{number}/{gpu}", f"h{1 - number}/{gpu}")}


def test_a_rank_that_ends_is_noticed_by_those_of_its_host(world):
    """Where no other failure explains it, an operation that needs a rank that is gone ends with ENDED."""
    inside = world.comms[2]._group._engine.edges.inside
    for link in (*inside.outgoing, *inside.incoming):
        link._socket.close()
    future = run_in_threads(lambda comm: comm.all_reduce(np.ones(1 << 18)), world.comms[1:2])[0]
    error = future.exception()
    assert isinstance(error, CollectiveError)
    assert (error.status, error.peer) == ("ENDED", 2)


def test_a_rank_that_ends_when_it_is_not_needed_wakes_nobody(world, monkeypatch):
    """An operation that goes on without a rank that has ended is not woken again and again because of it."""
    monkeypatch.setattr("c4bench.collective.engine._GRACE_S", 0.001)
    engine = world.comms[0]._group._engine
    link = engine.edges.inside.outgoing[0]
    sender = next(iter(link.senders.values()))
    link.ended, sender._total = True, 1
    engine._check_inside(None, Ready([], [], []))
    sender._total = 0
    ready = engine._waiter.wait(1.0)
    assert ready.readable
    engine._check_inside(None, ready)
    assert not any(engine._waiter.wait(0.0))


def test_a_rank_that_waits_sleeps(world, monkeypatch):
    """While ranks wait for one that is late, nothing wakes them again and again: virtual time would stand still."""
    steps = []
    step = Engine._step
    monkeypatch.setattr(Engine, "_step", lambda engine, operation: steps.append(1) or step(engine, operation))

    def work(comm):
        comm.barrier()
        before = len(steps)
        time.sleep(0.3 if comm.rank == 6 else 0.0)
        comm.all_reduce(np.ones(1 << 16))
        return len(steps) - before

    # Each of 8 ranks has 14 messages in each of two phases and four channels, with as many chunks and their grants.
    assert max(world.run(work)) < 5000


def test_a_mismatch_inside_a_host_is_noticed(world):
    """Ranks of one host that call different operations get an error, not wrong data."""
    raised = world.run(lambda comm: comm.all_reduce(np.ones(8 if comm.rank == 1 else 9)))
    assert any(isinstance(error, CollectiveError) and error.status == "MISMATCH" for error in raised)
    assert all(isinstance(error, CollectiveError) for error in raised)


def test_a_message_takes_its_time_after_those_before_it(tmp_path):
    """By hand, at a byte a ns: two messages of 1000 from GPU 0, and one from GPU 2 that meets them at GPU 1."""
    links = GpuLinks(tmp_path / "links", BYTE_A_NS)
    assert links.arrives_ns(GpuPair(0, 1), 1000, 5000) == 5000 + 1000 + 2000
    assert links.arrives_ns(GpuPair(0, 1), 1000, 5000) == 5000 + 2000 + 2000
    assert links.arrives_ns(GpuPair(2, 1), 500, 5000) == 5000 + 2500 + 2000
    assert links.arrives_ns(GpuPair(2, 3), 100, 5000) == 5000 + 600 + 2000
    assert GpuLinks(tmp_path / "free", Inside()).arrives_ns(GpuPair(0, 1), 1 << 20, 7) == 7


def test_faults_slow_an_end_or_take_a_gpu_down(tmp_path):
    """A quarter of the rate makes a message four times as long at that end; nothing crosses a link that is down."""
    links = GpuLinks(tmp_path / "links", BYTE_A_NS)
    with links_file(tmp_path / "links") as file:
        file.set(0, "send_fraction", 0.25)
        assert links.arrives_ns(GpuPair(0, 1), 1000, 0) == 4000 + 2000
        assert links.arrives_ns(GpuPair(1, 0), 1000, 0) == 1000 + 2000
        file.set(0, "send_fraction", 0.0)
        file.set(3, "receive_fraction", 0.5)
        assert links.arrives_ns(GpuPair(2, 3), 1000, 0) == 2000 + 2000
        file.set(2, "down", 1.0)
        assert links.arrives_ns(GpuPair(2, 0), 1000, 0) is None
        assert links.arrives_ns(GpuPair(0, 2), 1000, 0) is None
        assert file.read(2, "down") == 1.0
        file.set(2, "down", 0.0)
        assert links.arrives_ns(GpuPair(2, 1), 1, 10_000) == 10_000 + 1 + 2000
        with pytest.raises(UsageError, match="GPU 64"):
            file.set(64, "down", 1.0)


def test_another_file_is_not_taken_for_links(tmp_path):
    """A file of something else, and a value that nobody sets, are errors of one line."""
    (tmp_path / "other").write_bytes(b"something else")
    with pytest.raises(UsageError, match="not the links"), links_file(tmp_path / "other"):
        pass
    GpuLinks(tmp_path / "links", BYTE_A_NS)
    with links_file(tmp_path / "links") as file:
        file.set(1, "down", 7.0)
        with pytest.raises(UsageError, match="down is 7, which nobody sets"):
            file.read(1, "down")


def test_a_transfer_takes_as_long_as_the_links_say(tmp_path):
    """An all-reduce between two ranks of a host at 80 Mbit/s takes what its two messages take, and little more."""
    world = World(tmp_path, 2, nics=1, gpus=2, inside=Inside(80e6, 0.0))
    took = world.run(_timed_all_reduce)
    world.close()
    # Each rank sends half of 200,000 bytes twice, at 100 ns a byte.
    assert all(0.02 <= seconds < 0.2 for seconds in took)


def _timed_all_reduce(comm):
    began = time.monotonic()
    comm.all_reduce(np.ones(25_000))
    return time.monotonic() - began


def test_a_link_that_is_down_holds_messages_until_it_is_up(tmp_path):
    """Nothing is lost while a link is down: an operation goes on once it is up again."""
    world = World(tmp_path, 4, nics=2, gpus=2)
    with links_file(tmp_path / "h0.links") as file:
        file.set(1, "down", 1.0)
        arrays = [np.full(1000, float(rank)) for rank in range(4)]
        ended = threading.Event()

        def work(comm):
            comm.all_reduce(arrays[comm.rank])
            ended.set()

        threads = [threading.Thread(target=work, args=(comm,)) for comm in world.comms]
        for thread in threads:
            thread.start()
        assert not ended.wait(0.2)
        file.set(1, "down", 0.0)
        for thread in threads:
            thread.join(10.0)
    assert all((each == 6.0).all() for each in arrays)
    world.close()


def test_a_queue_gives_messages_when_they_have_arrived():
    """Messages are taken in order, none before its time, and an entry is reused after it was taken."""
    queue = SharedQueue(os.memfd_create("queue"), (3, 5), 4096)
    other = SharedQueue(os.dup(queue.descriptor), (3, 5), 4096)
    for number in range(1000):
        assert queue.append(5, number, 10, 2 * number) == 2 * number
        assert list(other.pop_arrived(2 * number - 1)) == []
        assert list(other.pop_arrived(2 * number)) == [(5, number)]
    queue.append(3, 7, 0, 50_000)
    assert queue.append(3, 8, 0, 60_000) == 50_000
    assert other.next_ns() == 50_000
    queue.slot(5, 9)[:3] = (1, 2, 3)
    assert other.slot(5, 1)[:3].tolist() == [1, 2, 3]
    assert other.slot(3, 1)[:3].tolist() == [0, 0, 0]
    for each in (queue, other):
        each.close()


def test_a_queue_holds_what_is_in_all_slots():
    """The messages in eight slots of each of 64 channels, the most that a link has, are kept until they are taken."""
    queue = SharedQueue(os.memfd_create("queue"), range(64), 64)
    under_way = [(channel, number) for number in range(8) for channel in range(64)]
    for channel, number in under_way:
        queue.append(channel, number, 10, 1)
    assert list(queue.pop_arrived(1)) == under_way
    queue.close()
