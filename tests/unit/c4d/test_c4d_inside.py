"""Ranks that hang inside an operation, and ranks that disagree, from records written by hand."""

import msgspec
from c4d_telemetry import comm, conn, file, op

from c4bench.c4d.hang.hangs import fully_entered_comms, members_not_reading, ranks_stuck_inside
from c4bench.c4d.hang.mismatch import mismatch_finding
from c4bench.c4d.hang.wait_for_graph import wait_graph
from c4bench.c4d.observe.job_view import JobView
from c4bench.model.diagnosis import Cause
from c4bench.model.telemetry import ArrivalRecord, CommRecord, Member


def _inside(ranks, awaits):
    """A job whose ranks have all entered operation 0 and lack data of `awaits`."""
    job = JobView("job")
    job.add_comm(comm(ranks))
    file(job, 2.0, ops=[msgspec.structs.replace(op(rank, 0, 1.0), awaits=awaits[rank]) for rank in range(ranks)])
    return job


def _send(job, rank, state, *, messages=3):
    peer = (rank + 1) % len(job.comms["world"].hosts)
    out = msgspec.structs.replace(conn(rank, peer, messages=messages), state=state)
    file(job, 2.0, conns=[out])


def test_rank_that_grants_nothing_and_lacks_data_does_not_act():
    """Its sender waits for credit, its receiver for data: both wait for it, whatever it says it waits for."""
    job = _inside(4, {0: (), 1: (0,), 2: (1,), 3: (2,)})
    for rank, state in enumerate(("credit", "data", "data", "idle")):
        _send(job, rank, state)
    assert ranks_stuck_inside(job, wait_graph(job), "world") == [1]


def test_last_one_inside_waits_for_nobody():
    """When all others have finished, what is still inside has everything it needs."""
    job = _inside(3, {0: (), 1: (), 2: ()})
    file(job, 2.0, ops=[op(rank, 0, 1.0, 1.5) for rank in (0, 2)])
    graph = wait_graph(job)
    assert fully_entered_comms(graph, job) == ["world"]
    assert ranks_stuck_inside(job, graph, "world") == [1]


def test_message_that_arrived_and_was_not_looked_at():
    """The sender has the acknowledgement, the receiver does not count the message: it does not look."""
    job = _inside(2, {0: (), 1: (0,)})
    _send(job, 0, "idle", messages=5)
    file(job, 2.0, arrivals=[ArrivalRecord("world", 1, 0, "h0/0", "h1/0", 7, 3)])
    assert members_not_reading(job, "world") == {1: 2}


def _group(name, ranks):
    members = (Member(place, f"h{rank}", (f"h{rank}/0",)) for place, rank in enumerate(ranks))
    return CommRecord(name, "job", tuple(members))


def test_reordered_collectives_are_a_circle():
    """Two ranks that enter two communicators in opposite order wait for each other: both operations are told."""
    job = JobView("job")
    for record in (comm(2), _group("data", (0, 1)), _group("tensor", (0, 1))):
        job.add_comm(record)
    file(job, 2.0, ops=[op(0, 0, 1.0, name="data"), op(1, 0, 1.0, name="tensor")])
    found = mismatch_finding(job.job, wait_graph(job), job.records_of, 1.0)
    assert found.cause == Cause.COLLECTIVE_ORDER_MISMATCH
    assert {(side.pg_name, side.ranks) for side in found.operations} == {("data", (0,)), ("tensor", (1,))}


def test_same_collective_of_another_size_is_told_apart():
    """Sizes and types that differ are named as what they are."""
    job = _inside(2, {0: (), 1: ()})
    job.add_comm(_group("data", (0, 1)))
    other = msgspec.structs.replace(op(1, 0, 0.5, name="data"), size_bytes=77)
    file(job, 2.0, ops=[op(0, 0, 0.5, name="data"), other])
    found = mismatch_finding(job.job, wait_graph(job), job.records_of, 1.0)
    assert found.cause == Cause.SIZE_OR_SYNTAX_MISMATCH
    assert {side.size_bytes for side in found.operations} == {77, 1024}


def test_ranks_that_agree_have_no_mismatch():
    """A rank that is merely late has called nothing yet."""
    job = _inside(3, {0: (), 1: (), 2: ()})
    file(job, 3.0, ops=[op(0, 0, 1.0, 1.5), op(0, 1, 2.0)])
    assert mismatch_finding(job.job, wait_graph(job), job.records_of, 1.0) is None
