"""What the master's detectors say of a job is said again by its recording, to the bit."""

import json
from itertools import product

import jsonschema
import pytest

from c4bench.c4d.act.sweep import plan_sweep
from c4bench.c4d.offline import detect
from c4bench.control.detection.detection import LocalDetection
from c4bench.control.jobs.job import Job
from c4bench.model.diagnosis import Component, NetworkLoss
from c4bench.model.fabric import MissingLink, Nic, Train
from c4bench.model.recording import (
    DeliveriesCounted,
    Delivery,
    ExpiringProbe,
    FailureReported,
    HopsProbed,
    LinksMissing,
    LossReported,
    PathsLearnt,
    ProbeSweep,
    ProbingEnded,
    TimedFlow,
    TrainsTimed,
)
from c4bench.model.step import StepOp
from c4bench.model.telemetry import Failure
from c4bench.record import RunDirectory
from c4bench.record.telemetry import read_telemetry
from c4bench.wire.messages import JobSpec
from tools.documents.schemas import schemas
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob

RANKS, ONSET_S, UNTIL_S = 8, 3.1, 6.6
STEP = (StepOp("all_reduce", 4 << 20, 0.04), StepOp("all_to_all", 4 << 20, 0.0))
# The master evaluates at its own times, and its clock differs from the hosts'.
LATE_S, AHEAD_S = 0.037, 1000.0
AT_S = AHEAD_S + ONSET_S
NICS = tuple(Nic(f"h{rank}", 0, "", "", "", 1e10) for rank in range(RANKS))

PATHS = tuple(
    (a.name, b.name, port, (f"from {a.name}", "up", f"to {b.name}"))
    for a, b, port in product(NICS, NICS, range(0xC000, 0xC000 + RANKS))
    if a != b
)
LEARNT = (
    PathsLearnt(AHEAD_S + 1.0, PATHS),
    LinksMissing(AT_S + 0.3, (MissingLink("gone", AT_S - 0.5, AT_S + 0.3, ("up",)),)),
)
PATH = SimFault(SimFaultKind.PATH_RATE, 2, ONSET_S, factor=0.6, peer=6)
RAISED = SimFault(SimFaultKind.RAISED, 5, ONSET_S)
REFUSED = FailureReported(AT_S, "job", "job.world", Failure(5, "sending failed", "LOC_QP_OP_ERR"))
PROBES = tuple(probe for step in plan_sweep(NICS) for probe in step)
SWEPT = ProbeSweep(
    AT_S, "job", PROBES, tuple(0.8 if "h4/0" in (probe.source, probe.destination) else 1.0 for probe in PROBES)
)
# In a ring alone a dead path is a doubt: either NIC or any link of it may be dead.
RING = (STEP[0],)
DEAD = SimFault(SimFaultKind.PATH_RATE, 2, ONSET_S, factor=0.0, peer=3)
PROBED = (
    DeliveriesCounted(
        AT_S + 2.0,
        "job",
        (
            Delivery("h2/0", "h5/0", 0xC000, 100, 0, 0, 0),
            Delivery("h4/0", "h2/0", 0xC000, 100, 100, 100, 0),
            Delivery("h4/0", "h3/0", 0xC000, 100, 100, 100, 0),
            Delivery("h4/0", "h5/0", 0xC000, 100, 100, 100, 0),
        ),
    ),
    HopsProbed(AT_S + 2.1, "job", (ExpiringProbe("h4/0", "h5/0", 0xC000, 1),), ("from h4/0",)),
    ProbingEnded(AT_S + 2.2, "job"),
)
# So is a slow one. Trains tell: those from one NIC are spread, whichever way they go.
SLOW = SimFault(SimFaultKind.PATH_RATE, 2, ONSET_S, factor=0.3, peer=3)
TIMED = (
    TrainsTimed(
        AT_S + 2.0,
        "job",
        tuple(
            TimedFlow(*path[:3], 1e10, 65536, 10, (Train(1e-5, (3 if path[0] == "h2/0" else 1) * 8e-10),) * 10)
            for path in PATHS
        ),
    ),
    ProbingEnded(AT_S + 2.1, "job"),
)
LOST = LossReported(AT_S, "job", "job.world", NetworkLoss(2, Component("nic", "h2/0"), ONSET_S))


def live(fault, *, reports=(), learnt=(), known=(), beside=False, step=STEP):
    """Run a job while its ranks report, C4P learns, or another job starts; return it and its diagnoses.

    What is `known` C4P has learnt before; the job has one NIC then, and all of them later.
    """
    detection, diagnoses = LocalDetection(), []
    job, other = (Job(JobSpec(name, "", (), NICS[: 1 if known else RANKS])) for name in ("job", "other"))
    for record in known:
        detection.ingest_fabric(record)
    detection.follow(job, AHEAD_S)
    job.become(JobSpec("job", "", (), NICS))
    others = simulate(SimJob(RANKS, STEP, name="other", seed=2), (), UNTIL_S)
    last_s = 0.0
    for tick in simulate(SimJob(RANKS, step, seed=1), [fault], UNTIL_S):
        now_s = AHEAD_S + tick.time_s + LATE_S
        for window in tick.windows:
            detection.ingest("job", window)
        if beside and tick.time_s >= ONSET_S:
            if last_s < AT_S:
                detection.follow(other, now_s)
            for window in next(iter(others)).windows:
                detection.ingest("other", window)
        for record in (record for record in reports if last_s < record.at_s <= now_s):
            detection.ingest("job", record)
        for record in (record for record in learnt if last_s < record.at_s <= now_s):
            detection.ingest_fabric(record)
        diagnoses += detection.evaluate(now_s).get("job", [])
        last_s = now_s
    return job, diagnoses


@pytest.mark.parametrize(
    ("fault", "more", "named"),
    [
        pytest.param(RAISED, {"reports": (REFUSED,)}, ["nic h5/0"], id="failure"),
        # The NIC still carries data, so it is not lost for long.
        pytest.param(PATH, {"reports": (LOST,)}, ["nic h2/0", "path h2/0>h6/0"], id="loss", marks=pytest.mark.nightly),
        pytest.param(PATH, {"learnt": LEARNT}, ["link gone"], id="missing link"),
        pytest.param(PATH, {"reports": (SWEPT,)}, ["nic h4/0", "path h2/0>h6/0"], id="sweep"),
        pytest.param(
            DEAD,
            {"reports": PROBED, "learnt": LEARNT[:1], "step": RING},
            ["link from h2/0", "link from h2/0"],
            id="probes",
        ),
        pytest.param(
            SLOW,
            {"reports": TIMED, "learnt": LEARNT[:1], "step": RING},
            ["nic h2/0 (tx)", "nic h2/0 (tx)"],
            id="trains",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            SLOW,
            {"reports": TIMED, "known": LEARNT[:1], "step": RING},
            ["nic h2/0 (tx)", "nic h2/0 (tx)"],
            id="more hosts",
        ),
        pytest.param(PATH, {"beside": True}, [], id="neighbour"),
        pytest.param(PATH, {}, ["path h2/0>h6/0"], id="nothing", marks=pytest.mark.nightly),
    ],
)
def test_a_recording_gives_the_same_diagnoses(fault, more, named, tmp_path):
    """Detection on the recording finds the same as live, including reports of ranks, links of C4P and other jobs."""
    job, diagnoses = live(fault, **more)
    assert [str(diagnosis.component) for diagnosis in diagnoses] == named
    RunDirectory(tmp_path).save_telemetry("job", job.recording)
    path = tmp_path / "telemetry/job.jsonl"
    records, torn = read_telemetry(path)
    assert (detect(records), torn) == (diagnoses, 0)
    schema = jsonschema.Draft202012Validator(json.loads(schemas()["telemetry.schema.json"]))
    for line in path.read_bytes().splitlines()[:: len(records) // 50]:
        schema.validate(json.loads(line))
    assert records == list(job.recording)
