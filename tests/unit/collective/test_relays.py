"""All-to-all by relays: which messages leave a host, and that results are exact."""

import numpy as np
import pytest

from c4bench.collective import relays
from c4bench.collective.ring_reader import read_telemetry_file


@pytest.mark.parametrize(
    ("chunks", "block_bytes", "rows"), [(1, 100, 1), (1, 1000, 2), (1, 4096, 8), (3, 9000, 24), (1, 0, 1)]
)
def test_short_blocks_share_messages(chunks, block_bytes, rows):
    """Of eight ranks' blocks as many go into a message of 4 KiB as fit, in equal numbers; long ones are cut."""
    assert relays.row_chunks(8, chunks, block_bytes, 4096) == rows


@pytest.mark.parametrize(("chunks", "rows"), [(1, 1), (1, 2), (3, 12)])
def test_messages_between_hosts_stay_on_their_rail(chunks, rows):
    """A rank sends to other hosts only on its rail, what four ranks have for a receiver in so many messages."""
    hosts = ((1, 0, 3, 2), (4, 5, 6, 7), (11, 10, 9, 8))
    assert relays.consecutive(hosts)
    assert not relays.consecutive(((0, 2), (1, 3)))
    for ranks in hosts:
        for place, rank in enumerate(ranks):
            plan = relays.all_to_all(rank, hosts, chunks, rows)
            sends = [send for stream in plan.streams for send in stream]
            outside = [send for send in sends if send.peer not in ranks]
            assert {send.peer for send in outside} == {there[place] for there in hosts if there != ranks}
            assert len(outside) == 2 * rows
            # To each rank inside: its own block, and those for its rail on two other hosts.
            assert len(sends) - len(outside) == 3 * 3 * chunks


def test_a_nic_begins_with_what_needs_no_other_rank():
    """Each rank's first messages to another host are its own block's, and the receiver expects them in that order."""
    hosts = ((1, 0, 3, 2), (4, 5, 6, 7))
    plans = {rank: relays.all_to_all(rank, hosts, 3, 12) for ranks in hosts for rank in ranks}
    for one, other in zip(*hosts, strict=True):
        for rank, peer, ranks in ((one, other, hosts[0]), (other, one, hosts[1])):
            sends = [send for stream in plans[rank].streams for send in stream if send.peer == peer]
            assert [send.chunk for send in sends[:3]] == [3 * (rank - min(ranks)) + chunk for chunk in range(3)]
            assert [send.needs for send in sends[:4]] == [0, 0, 0, 1]
            expected = [receive.chunk for receive in plans[peer].receives if receive.peer == rank]
            assert expected == [send.chunk for send in sends]


@pytest.mark.parametrize(
    ("hosts", "gpus", "resilient"),
    [
        (2, 2, False),
        (3, 2, True),
        *(pytest.param(*case, marks=pytest.mark.nightly) for case in ((2, 4, False), (3, 3, False))),
    ],
)
def test_results_are_exact_and_the_record_says_pxn(world, hosts, gpus, resilient):
    """Every block comes where it belongs, for blocks of any length, among other collectives."""
    size = hosts * gpus
    job = world(size, gpus, gpus=gpus, chunk_bytes=4096, staging_bytes=8192, resilient=resilient)

    def work(comm):
        for block in (1, 130, 1200, 7):
            _exact_all_to_all(comm, block)
            comm.barrier()

    assert job.run(work) == [None] * size
    assert "pxn" in {op.algorithm for op in read_telemetry_file(job.path(0)).ops if op.kind == "all_to_all"}


def _exact_all_to_all(comm, block=130):
    source = np.arange(comm.size * block, dtype=np.int64) + 1_000_000 * comm.rank
    target = np.zeros(comm.size * block, np.int64)
    comm.all_to_all(target, source)
    own = np.arange(comm.rank * block, (comm.rank + 1) * block)
    np.testing.assert_array_equal(target, np.concatenate([own + 1_000_000 * peer for peer in range(comm.size)]))


def _exact_all_reduce(comm, count=1003):
    array = np.arange(count, dtype=np.int64) * (comm.rank + 1)
    comm.all_reduce(array)
    np.testing.assert_array_equal(array, np.arange(count) * (comm.size * (comm.size + 1) // 2))


@pytest.mark.parametrize("algorithm", ["tree", "hierarchical"])
def test_an_all_reduce_may_follow_the_first_all_to_all(world, algorithm):
    """Both use connections along rails; whichever comes first, those of the all-reduce have staging memory."""
    job = world(4, 2, gpus=2, algorithm=algorithm)

    def work(comm):
        _exact_all_to_all(comm)
        _exact_all_reduce(comm)

    assert job.run(work) == [None] * 4


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical"])
def test_a_rail_is_paced_by_its_own_nic(world, algorithm):
    """With several QPs, which are paced, a group of one GPU of each host works on any NIC, not on the first alone."""
    job = world(4, 2, gpus=2, qps=2, algorithm=algorithm)

    def work(comm):
        with comm.split(comm.rank % 2) as rail:
            _exact_all_to_all(rail)
            _exact_all_reduce(rail)

    assert job.run(work) == [None] * 4


def test_a_rail_that_is_no_channel_is_not_used(world):
    """With fewer channels than NICs, ranks next to another NIC use those of the channels, and all is exact."""
    job = world(4, 2, gpus=2, channels=1, algorithm="hierarchical")

    def work(comm):
        _exact_all_to_all(comm)
        _exact_all_reduce(comm)

    assert job.run(work) == [None] * 4
