"""Driving the detector with simulated and hand-made telemetry."""

from functools import lru_cache

from c4bench.c4d.detector import Detector
from c4bench.c4d.observe.batch import Batch
from c4bench.c4d.observe.record_validator import RecordValidator
from c4bench.model.recording import DeliveriesCounted, HopsProbed, PathsLearnt, ProbingEnded, TrainsTimed
from c4bench.model.step import StepOp
from c4bench.model.telemetry import CommRecord, ConnRecord, Member, OpRecord
from tools.sim.job import simulate
from tools.sim.windows import window_of

MIX = (StepOp("all_reduce", 4 << 20, 0.05), StepOp("all_to_all", 4 << 20, 0.0))


@lru_cache(maxsize=4)
def ticks(job, faults, duration_s):
    """All ticks of a simulated job, for tests that feed the same ones to several detectors."""
    return tuple(simulate(job, faults, duration_s))


def drive(job, faults=(), duration_s=6.0, detector=None, windows=None, prober=None):
    """Feed a simulated job to a detector tick by tick and collect what it says; `windows` gets what it is fed.

    With a `prober` all paths are known, and a round of probes is sent in each tick while there are doubts.
    """
    judge = detector or Detector()
    found = []
    if prober:
        judge.ingest(PathsLearnt(0.0, prober.all_paths()))
    for tick in simulate(job, faults, duration_s):
        if prober and (paths := prober.new_paths(tick.windows)):
            judge.ingest(PathsLearnt(tick.time_s, paths))
        for window in tick.windows:
            judge.ingest_window(window)
        if windows is not None:
            windows += tick.windows
        found += judge.evaluate(tick.time_s)
        if prober and (doubts := judge.doubts(job.name)) and doubts.any_open:
            judge.ingest(probed(job.name, doubts, prober, tick.time_s))
    assert judge.dropped == 0
    return found


def probed(job, doubts, prober, at_s):
    """What the next round of probes shows, or that there is none, in the order of `control.doubt_prober`."""
    if probes := doubts.next_probes(lambda *_: True):
        return HopsProbed(at_s, job, tuple(probes), prober.expire(probes, at_s))
    if (flows := doubts.next_flows()) and (deliveries := prober.deliver(flows, at_s)):
        return DeliveriesCounted(at_s, job, deliveries)
    if not flows and (flows := doubts.next_trains()):
        return TrainsTimed(at_s, job, prober.time_trains(flows, at_s))
    return ProbingEnded(at_s, job)


def period_of(job):
    """Fault-free length of one iteration of a simulated job, without jitter."""
    return sum(op.compute_s + _sent_bytes(job, op) * 8 / job.rate_bps for op in job.ops)


def _sent_bytes(job, op):
    size = op.group.size if op.group else job.ranks
    return messages_of(op.kind, size) * op.size_bytes / parts_of(op.kind, size)


def messages_of(kind, ranks):
    """How many messages each of so many ranks sends in an operation."""
    return {"all_reduce": 2 * (ranks - 1), "all_to_all": ranks - 1, "send": 1}[kind]


def parts_of(kind, ranks):
    """Into how many messages the bytes of an operation are cut."""
    return 1 if kind == "send" else ranks


def comm(ranks=2, name="world"):
    """A communicator with one rank and one NIC a host."""
    return CommRecord(name, "job", tuple(Member(rank, f"h{rank}", (f"h{rank}/0",)) for rank in range(ranks)))


def op(rank, seq, entered_s, finished_s=0.0, name="world"):
    """An all-reduce as `rank` saw it."""
    return OpRecord(name, rank, seq, "all_reduce", "ring", "float32", 1024, entered_s, 0.0, finished_s)


def conn(rank, peer, *, messages=0, outstanding=0, progress_s=0.0, transfer_s=0.0, size_bytes=None):
    """The connection from `rank` to `peer`."""
    sent = messages * 1000 if size_bytes is None else size_bytes
    ends, spent_s = (f"h{rank}/0", f"h{peer}/0"), (0.0, 0.0, transfer_s, transfer_s)
    return ConnRecord("world", rank, peer, *ends, 7, 49152, messages, sent, *spent_s, progress_s, outstanding, 0)


def window(host, sequence, end_s, **records):
    """A window of a tenth of a second."""
    filled = {kind: tuple(records.get(kind, ())) for kind in ("comms", "ranks", "ops", "conns", "arrivals", "nics")}
    return window_of(host, sequence, end_s - 0.1, end_s, **filled)


def remade(window, **changes):
    """The window with other records, or another head."""
    own = {name: getattr(window, name) for name in ("host", "sequence", "start_s", "end_s", "comms", "ranks", "ops")}
    own |= {name: getattr(window, name) for name in ("conns", "arrivals", "nics")}
    return window_of(**own | changes)


def file(job, host_end_s, **records):
    """File records written by hand under a job, each as a window of the host that its rank is on."""
    windows = [
        window(job.comms[record.comm].hosts[record.rank], 1, host_end_s, **{layer: (record,)})
        for layer, held in records.items()
        for record in held
    ]
    job.ingest(Batch(windows), RecordValidator())
