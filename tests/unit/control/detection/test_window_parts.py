"""A host's window is cut into the parts of the attempts that run there."""

from c4bench.control.detection.windows import WindowParts
from c4bench.control.jobs.job import Job
from c4bench.model.telemetry import ArrivalRecord, CommRecord, ConnRecord, Member, OpRecord, RankRecord
from c4bench.wire.messages import JobSpec
from tools.sim.windows import window_of

MEMBERS = (Member(0, "h0", ("h0/0",)), Member(1, "h1", ("h1/0",)))


def op(comm, seq):
    return OpRecord(comm, 0, seq, "all_reduce", "ring", "float32", 8, 1.0, 1.0, 2.0, tuple(range(seq)))


def conn(comm):
    return ConnRecord(comm, 0, 1, "h0/0", "h1/0", 0, 0, 1, 8, 0.0, 0.0, 0.0, 0.0, 1.0, 0, 0)


def test_each_attempt_gets_its_own_records_in_their_order():
    """Records follow their communicator, those of none that the window lists are left out, and NICs are everybody's."""
    comms = tuple(CommRecord(f"{job}.world", job, MEMBERS) for job in ("a", "b", "gone"))
    ranks = tuple(RankRecord(job, 0, "h0", 7, "running") for job in ("b", "a", "gone"))
    ops = (op("b.world", 1), op("a.world", 5), op("b.world", 0), op("gone.world", 0), op("unlisted", 0))
    conns = (conn("b.world"), conn("unlisted"))
    arrivals = (ArrivalRecord("a.world", 0, 1, "h1/0", "h0/0", 0, 3),)
    window = window_of("h0", 4, 1.0, 2.0, comms, ranks, ops, conns, arrivals)
    found = WindowParts({name: Job(JobSpec(name, "", MEMBERS, ())) for name in ("a", "b")}).parts(window)
    assert {name: records(part) for name, part in found.items()} == {
        "a": (comms[:1], ranks[1:2], (ops[1],), (), arrivals),
        "b": (comms[1:2], ranks[:1], (ops[0], ops[2]), conns[:1], ()),
    }


def test_a_window_of_one_attempt_is_its_part():
    """Nothing is copied where a host runs one attempt."""
    ranks = (RankRecord("a", 0, "h0", 7, "running"),)
    window = window_of("h0", 4, 1.0, 2.0, (CommRecord("a.world", "a", MEMBERS),), ranks, (op("a.world", 1),))
    found = WindowParts({"a": Job(JobSpec("a", "", MEMBERS, ()))}).parts(window)
    assert found["a"] is window


def test_jobs_that_begin_and_end_are_noticed():
    """The same ranks are foreign, or another attempt's part, as soon as jobs say so, and as long."""
    jobs, comms = {}, (CommRecord("a.world", "a", MEMBERS),)
    parts, ranks = WindowParts(jobs), (RankRecord("a", 1, "h0", 7, "running"),)
    window = window_of("h0", 4, 1.0, 2.0, comms, ranks, (op("a.world", 1),))
    elsewhere = Job(JobSpec("a", "", MEMBERS, ()))
    here = Job(JobSpec("a", "", (MEMBERS[1], Member(1, "h0", ())), ()))
    found = []
    for job in (None, elsewhere, here, None):
        jobs.clear()
        jobs.update({"a": job} if job else {})
        own, foreign = parts.own(window)
        found.append((foreign, own.ranks, parts.parts(own)))
    assert found == [(0, ranks, {}), (1, (), {}), (0, ranks, {"a": window}), (0, ranks, {})]


def records(part):
    return part.comms, part.ranks, part.ops, part.conns, part.arrivals
