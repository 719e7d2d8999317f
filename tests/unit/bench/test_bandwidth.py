"""The measured collectives, on ranks that are threads."""

import pytest

from c4bench.bench.figures import bus_bandwidth_bps
from c4bench.bench.suites import COLLECTIVES
from c4bench.collective.options import Options
from c4bench.workload import bandwidth
from c4bench.workload.bandwidth import Bandwidth
from tools.bench.ranks import each, ranks

RANKS = 3


class Context:
    """What a program is given, in this process."""

    def __init__(self, comm, wanted):
        self.rank, self.size = comm.rank, comm.size
        self._comm, self._wanted = comm, wanted
        self.reported = []

    def parameters(self, _):
        return self._wanted

    def communicator(self, _name, _options):
        return self._comm

    def report(self, kind, **fields):
        self.reported.append((kind, fields))


def measured(folder, **rest):
    """What each rank reports of a job with these parameters."""
    wanted = Bandwidth(**rest)
    with ranks(folder, RANKS, wanted.options()) as comms:
        contexts = {comm: Context(comm, wanted) for comm in comms}
        each(comms, lambda comm: bandwidth.run(contexts[comm]))
    return [report for context in contexts.values() for report in context.reported]


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("back_to_back", [False, True])
def test_every_collective_is_exact_and_timed(tmp_path, collective, back_to_back):
    """Each rank reports every element exact and a span for every operation but the warm-up, enough for a bandwidth."""
    reports = measured(tmp_path, collective=collective, size_bytes=70_001, operations=2, back_to_back=back_to_back)
    assert [kind for kind, _ in reports] == [collective] * RANKS
    results = [fields for _, fields in reports]
    assert all(result["exact"] == result["checked"] > 0 for result in results)
    assert all(len(result["spans"]) == 2 for result in results)
    assert bus_bandwidth_bps(collective, 70_001, results) > 0


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_corrupted_element_is_noticed(tmp_path, collective):
    """One element changed after each operation, on one rank, is one element less there and none elsewhere."""
    reports = measured(tmp_path, collective=collective, size_bytes=4096, operations=2, warmup=1, corrupt=True)
    assert [fields["checked"] - fields["exact"] for _, fields in reports] == [3, 0, 0]


@pytest.mark.parametrize(("collective", "count"), [("all_reduce", 25), ("broadcast", 25), ("all_gather", 8)])
def test_sizes_are_counted_as_nccl_tests_does(collective, count):
    """The size is the larger array's; a rank's part of it is a whole number of items."""
    assert Bandwidth(size_bytes=100, collective=collective).call(RANKS).count == count


def test_options_reach_the_communicator():
    """A chunk larger than the usual staging memory gets staging memory to fit."""
    options = Bandwidth(size_bytes=1, chunk_bytes=8 << 20, channels=2, record=False).options()
    assert (options.chunk_bytes, options.channels, options.record) == (8 << 20, 2, False)
    assert options.staging_bytes >= 8 << 20 > Options().staging_bytes
