"""The wait-for graph over overlapping communicators."""

from c4d_telemetry import comm, conn, file, op

from c4bench.c4d.hang.wait_for_graph import least_progress, wait_graph
from c4bench.c4d.observe.job_view import JobView
from c4bench.model.telemetry import CommRecord, Member


def _job(*records):
    job = JobView("job")
    for record in records:
        job.add_comm(record)
    return job


def _group(name, ranks):
    """A communicator of some of the job's ranks, numbered within it."""
    members = (Member(place, f"h{rank}", (f"h{rank}/0",)) for place, rank in enumerate(ranks))
    return CommRecord(name, "job", tuple(members))


def test_absent_rank_is_the_sink():
    """Ranks inside an operation wait for the member that has not entered it."""
    job = _job(comm(3))
    file(job, 2.0, ops=[op(0, 1, 1.0), op(1, 1, 1.0), op(2, 0, 0.1, 0.2)])
    graph = wait_graph(job)
    assert graph.sinks() == [2]
    assert graph.waiting_for(2) == 2


def test_sink_is_found_across_overlapping_communicators():
    """A rank that is absent here because it waits there is not to blame; the rank it waits for is."""
    job = _job(comm(4), _group("data", (0, 1)), _group("tensor", (1, 2)), _group("pipe", (2, 3)))
    file(job, 9.0, ops=[op(0, 0, float(at), name=name) for at, name in enumerate(("data", "tensor", "pipe"), start=1)])
    graph = wait_graph(job)
    assert graph.sinks() == [3]
    assert graph.waiting_for(3) == 3


def test_a_rank_waits_in_the_first_operation_it_has_not_completed():
    """Of two operations under way, the one entered first decides whom a rank waits for."""
    job = _job(comm(3), _group("data", (0, 1)), _group("tensor", (0, 2)))
    file(job, 9.0, ops=[op(0, 0, 1.0, name="data"), op(0, 0, 1.5, name="tensor")])
    assert wait_graph(job).sinks() == [1]


def test_older_operation_of_the_same_communicator_comes_first():
    """With two operations of one communicator queued, the members are awaited in the older one."""
    job = _job(comm(2))
    file(job, 9.0, ops=[op(0, 4, 1.0), op(0, 5, 1.1), op(1, 4, 1.2)])
    assert wait_graph(job).pending[0].seq == 4
    assert wait_graph(job).sinks() == []


def test_unacknowledged_connection_is_the_sink_once_all_have_entered():
    """Nobody is absent, so everybody waits for the connection whose messages are not acknowledged."""
    job = _job(comm(2))
    stuck = conn(0, 1, messages=3, outstanding=2)
    file(job, 2.0, ops=[op(0, 0, 1.0), op(1, 0, 1.0)], conns=[stuck, conn(1, 0, messages=4)])
    assert wait_graph(job).sinks() == [("world", 0, 1, "h0/0", "h1/0", 7)]


def test_least_progress_is_where_a_ring_stopped():
    """The last step reached is least at the rank where the data stopped, and rises by one around the ring."""
    job = _job(comm(4))
    sent = enumerate((12, 13, 10, 11))
    file(job, 2.0, conns=[conn(rank, (rank + 1) % 4, messages=messages) for rank, messages in sent])
    assert least_progress(job, "world", range(4)) == [2]
