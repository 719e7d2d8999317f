"""Another job that starts to use a path makes it slower; the path is healthy."""

import msgspec
import pytest
from c4d_telemetry import MIX, comm, conn, file, ticks
from night_cases import at_night

from c4bench.c4d.detector import Detector
from c4bench.c4d.observe.cell_index import CellIndex
from c4bench.c4d.observe.delay_matrix import DelayMatrix
from c4bench.c4d.observe.job_view import JobView
from c4bench.c4d.observe.shared_fabric import SharedFabric, TrafficArrivals, arrival
from c4bench.model.step import RankGroup
from tools.sim.model import SimFault, SimFaultKind, SimJob

ONSET_S = 3.1
MINE, THEIRS = ("a", "b", "1"), ("c", "d", "1")
SLOW_NIC = SimFault(SimFaultKind.NIC_RATE, 5, ONSET_S, factor=0.6, side="rx")
# Others send to it four times as much as the job does: more than transfers that merely meet.
INCAST = SimFault(SimFaultKind.NIC_RATE, 5, ONSET_S, factor=0.2, side="rx")
SLOW_PATH = SimFault(SimFaultKind.PATH_RATE, 2, ONSET_S, factor=0.6, peer=6)


def named(faults, *arrivals, ops=MIX):
    """What is named of a job beside which these cells of others begin to carry, each with its time."""
    company = TrafficArrivals()
    for at_s, *cells in arrivals:
        company.ingest(arrival("beside", at_s - 0.1, at_s + 0.1, cells, {}))
    detector, found = Detector(SharedFabric(arrivals=company)), []
    for tick in ticks(SimJob(8, ops, seed=1), faults, 6.5):
        for window in tick.windows:
            detector.ingest_window(window)
        found += detector.evaluate(tick.time_s)
    return [str(one.component) for one in found]


@pytest.mark.parametrize(
    ("fault", "name"),
    [(INCAST, "nic h5/0 (rx)"), (SLOW_PATH, "path h2/0>h6/0"), *at_night((SLOW_NIC, "nic h5/0 (rx)"))],
)
def test_what_another_job_comes_upon_is_no_finding(fault, name):
    """A NIC or a path that is slower from the moment on at which another job began to send is not blamed."""
    assert named((fault,)) == [name]
    assert named((fault,), (ONSET_S, THEIRS)) == []


def test_what_came_at_another_time_explains_nothing():
    """Neither what has been there for a second nor what comes a second later."""
    assert named((SLOW_PATH,), (ONSET_S - 1.0, THEIRS), (ONSET_S + 1.5, THEIRS)) == ["path h2/0>h6/0"]


@pytest.mark.parametrize(("came_s", "names"), [(ONSET_S, []), (ONSET_S - 1.0, ["nic h5/0 (rx)"])])
def test_what_came_while_a_rank_was_late_explains_what_is_slow_afterwards(came_s, names):
    """Cells are not judged just after a rank was late: what is slow then may have become so at any time since."""
    pause = SimFault(SimFaultKind.COMPUTE, 2, ONSET_S - 0.1, ONSET_S + 0.1, factor=4.0)
    assert named((INCAST, pause), (came_s, THEIRS)) == names


@pytest.mark.parametrize(("came_s", "names"), [(ONSET_S - 0.6, []), (ONSET_S - 1.2, ["nic h5/0 (rx)"])])
def test_what_came_while_a_group_sent_nothing_explains_what_is_slow_afterwards(came_s, names):
    """While one group computes and the other goes on, paths of the first may become slow and nobody sees it."""
    pauses = [SimFault(SimFaultKind.COMPUTE, rank, ONSET_S - 0.9, ONSET_S, factor=22.0) for rank in range(4, 8)]
    halves = tuple(msgspec.structs.replace(op, group=RankGroup("half", 4)) for op in MIX)
    assert named((INCAST, *pauses), (came_s, THEIRS), ops=halves) == names


@pytest.mark.parametrize(
    ("theirs", "links", "met"),
    [
        (THEIRS, {}, True),
        (THEIRS, {MINE: ("x",)}, True),
        (THEIRS, {MINE: ("x", "y"), THEIRS: ("y", "z")}, True),
        (THEIRS, {MINE: ("x",), THEIRS: ("z",)}, False),
        (("b", "d", "1"), {MINE: ("x",), ("b", "d", "1"): ("z",)}, True),
    ],
)
def test_jobs_meet_at_nics_and_on_links(theirs, links, met):
    """Jobs whose links are known meet where they share one, or a NIC; of others nobody knows that they do not."""
    company = TrafficArrivals()
    company.ingest(arrival("beside", 1.0, 1.2, [theirs], links))
    assert company.explains("mine", [MINE], links, 1.1, 1.3) is met
    assert not company.explains("beside", [MINE], links, 1.1, 1.3)


def test_only_what_has_been_away_comes():
    """A connection that carries in most spans comes once; one that was idle for long comes again."""
    view, matrix, carried = JobView("job"), DelayMatrix(CellIndex()), 0
    view.add_comm(comm(2))

    def came(*, carries=True):
        nonlocal carried
        carried += carries
        file(view, 9.0, conns=[conn(0, 1, messages=carried, transfer_s=float(carried))])
        matrix.add(view.conns)
        return bool(matrix.close_span().arrived)

    assert [came() for _ in range(4)] == [False, True, False, False]
    assert not any(came(carries=False) for _ in range(3))
    assert not came()
    assert not any(came(carries=False) for _ in range(9))
    assert came()
