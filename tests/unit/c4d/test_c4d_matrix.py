"""The delay matrix: what counts, against what it is held, and how it is shown."""

import itertools
import math

import msgspec
import pytest
from c4d_telemetry import MIX, comm, conn, drive, file
from night_cases import at_night

from c4bench.c4d.detector import Detector
from c4bench.c4d.observe.cell_index import CellIndex
from c4bench.c4d.observe.delay_baseline import DelayBaseline, HealthyDepartures
from c4bench.c4d.observe.delay_matrix import DelayMatrix, matrix_table
from c4bench.c4d.observe.job_view import JobView
from c4bench.c4d.observe.shared_fabric import KnownPaths
from c4bench.c4d.signs.delays import MatrixSlice, slice_departures
from c4bench.c4d.thresholds import BASELINE_MAX_SPANS, NAME_SPANS
from c4bench.model.diagnosis import Component
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob


class _Job:
    """A job of two, and its delay matrix."""

    def __init__(self):
        self.view = JobView("job")
        self.view.add_comm(comm(2))
        self.matrix = DelayMatrix(CellIndex())
        self.close, self.current = self.matrix.close_span, self.matrix.current

    def add(self, record):
        file(self.view, 9.0, conns=[record])
        self.matrix.add(self.view.conns)


def test_cell_is_transfer_time_per_byte_between_two_looks():
    """Counters are cumulative: only what was added since the first sight counts."""
    matrix = _Job()
    matrix.add(conn(0, 1, messages=50, transfer_s=9.0))
    matrix.add(conn(0, 1, messages=60, transfer_s=9.5))
    assert matrix.close().cells == {("h0/0", "h1/0", "49152"): pytest.approx(0.5 / 10_000)}
    assert matrix.close().cells == {}


def test_message_under_way_is_not_cut_in_half():
    """Seconds of an unacknowledged message wait for its bytes, however the span falls."""
    matrix = _Job()
    matrix.add(conn(0, 1, messages=1, transfer_s=1.0))
    matrix.add(conn(0, 1, messages=2, transfer_s=2.9, outstanding=1))
    assert matrix.close().cells == {}
    matrix.add(conn(0, 1, messages=3, transfer_s=3.0))
    assert matrix.close().cells == {("h0/0", "h1/0", "49152"): pytest.approx(2.0 / 2_000)}


def test_messages_much_smaller_than_usual_tell_nothing():
    """They take as long as the way is; a job that goes over to them for good is measured by them in time."""
    matrix, sent = _Job(), [0, 0, 0.0]

    def span(size_bytes, transfer_s):
        for index, more in enumerate((10, 10 * size_bytes, transfer_s)):
            sent[index] += more
        matrix.add(conn(0, 1, messages=sent[0], size_bytes=sent[1], transfer_s=sent[2]))
        return matrix.close().cells

    span(1000, 1.0)
    assert span(1000, 1.0) == {("h0/0", "h1/0", "49152"): pytest.approx(1e-4)}
    assert span(8, 0.5) == {}
    assert span(1000, 1.0) == {("h0/0", "h1/0", "49152"): pytest.approx(1e-4)}
    assert any(span(200, 0.5) for _ in range(10))


def test_a_connection_that_is_moved_begins_anew():
    """What a message took on one way says nothing of another: the first sight on a new one only sets a mark."""
    matrix = _Job()
    moved = [msgspec.structs.replace(conn(0, 1, messages=n, transfer_s=n / 10), source_port=7) for n in (70, 90)]
    matrix.add(conn(0, 1, messages=50, transfer_s=5.0))
    matrix.add(moved[0])
    assert matrix.close().cells == {}
    matrix.add(moved[1])
    assert matrix.close().cells == {("h0/0", "h1/0", "7"): pytest.approx(2.0 / 20_000)}
    assert matrix.current() == {("h0/0", "h1/0", "7")}


def test_links_of_connections_are_looked_up_when_there_is_news():
    """C4P has learnt a way, or moved a connection; until then they are the same object."""
    job, routes = _Job(), KnownPaths()
    job.view = JobView("job", routes)
    job.view.add_comm(comm(2))
    job.add(conn(0, 1, messages=10))
    assert job.view.links() == {}
    routes.learn([("h0/0", "h1/0", 49152, ("up", "down"))])
    links = job.view.links()
    assert links == {("h0/0", "h1/0", "49152"): ("up", "down")}
    job.add(conn(0, 1, messages=20))
    assert job.view.links() is links
    job.add(msgspec.structs.replace(conn(0, 1, messages=30), source_port=50_000))
    assert job.view.links() == {("h0/0", "h1/0", "50000"): ()}


def test_a_connection_that_nothing_uses_is_no_cell_in_use():
    """A communicator connects before it is called; its way has shown nothing, neither good nor bad."""
    matrix = _Job()
    matrix.add(conn(0, 1, messages=0, transfer_s=0.0))
    matrix.close()
    assert matrix.current() == set()
    matrix.add(conn(0, 1, messages=1, transfer_s=0.1))
    matrix.close()
    assert matrix.current() == {("h0/0", "h1/0", "49152")}


class _Costs:
    """A baseline that is given figures by cell."""

    def __init__(self):
        self._ways = CellIndex()
        self._baseline = DelayBaseline(self._ways)
        self.knows = self._baseline.knows
        self.cell_chance, self.side_chance = self._baseline.cell_chance, self._baseline.side_chance

    def learn(self, cells):
        self._baseline.learn(self._ways.values_of(cells))

    def departures(self, cells):
        return self._baseline.departures(self._ways.values_of(cells))

    def forget(self, cell):
        self._baseline.forget(cell)

    def without_history(self, cells):
        return self._baseline.without_history(self._ways.values_of(cells))


def _taught(cells, spans=NAME_SPANS):
    baseline = _Costs()
    for _ in range(spans):
        baseline.learn(cells)
    return baseline


def test_unequal_cells_are_each_held_against_their_own_history():
    """A path that was always three times as long is not slow; one that became twice as long is."""
    usual = {("a", "b"): 1.0, ("b", "c"): 3.0, ("c", "a"): 1.0}
    departures = _taught(usual).departures({("a", "b"): 1.0, ("b", "c"): 3.0, ("c", "a"): 2.0})
    assert departures == {("a", "b"): 0.0, ("b", "c"): 0.0, ("c", "a"): pytest.approx(math.log(2))}


def test_a_new_way_is_held_against_what_others_between_its_nics_have_shown():
    """A new path is compared so until it has its own history, however late it appears."""
    baseline = _taught({("a", "b", "1"): 1.0, ("b", "c", "1"): 1.0, ("c", "a", "1"): 1.0}, BASELINE_MAX_SPANS)
    moved = {("a", "b", "2"): 2.0, ("b", "c", "1"): 1.0, ("c", "a", "1"): 1.0}
    assert baseline.departures(moved)["a", "b", "2"] == pytest.approx(math.log(2))
    assert not baseline.knows(("a", "b", "2"))
    for _ in range(NAME_SPANS):
        baseline.learn(moved)
    assert baseline.departures(moved)["a", "b", "2"] == 0.0


def test_a_way_that_shows_anew_what_it_costs_has_twenty_spans_for_that():
    """What meets others now does not meet them in a span in which little was sent: one such span is no floor."""
    met, calm = ("h0/0", "h1/0"), {("h2/0", "h3/0"): 1.0, ("h4/0", "h5/0"): 1.0}
    costs = _taught({met: 1.0, **calm})
    costs.forget(met)
    for span in range(BASELINE_MAX_SPANS):
        assert not costs.knows(met)
        costs.learn({met: 1.0 if span == 9 else 1.8, **calm})
    assert costs.departures({met: 1.8, **calm})[met] == pytest.approx(0.0)


def test_what_slows_all_cells_alike_blames_none():
    """Twice the time per byte everywhere is another workload, not a component."""
    usual = {("a", "b"): 1.0, ("b", "c"): 2.0, ("c", "a"): 3.0}
    departures = _taught(usual).departures({cell: 2 * value for cell, value in usual.items()})
    assert max(departures.values()) == pytest.approx(0.0)


def test_floor_is_what_a_transfer_takes_that_meets_no_other():
    """Transfers that ran into others now and then do not raise the floor that departures are counted from."""
    baseline = _Costs()
    for value in (4.0, 1.0, 2.0, 1.0, 6.0):
        baseline.learn({("a", "b"): value})
    assert baseline.departures({("a", "b"): 2.0}) == {("a", "b"): pytest.approx(math.log(2))}


def test_what_healthy_cells_do_often_is_likely():
    """The chance of a departure is how often healthy cells made it, and falls fast beyond all of them."""
    baseline = _Costs()
    for value in (1.0, 1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 1.0):
        baseline.learn({("a", "b"): value})
    once, beyond = (baseline.cell_chance(("a", "b"), math.log(ratio), 1) for ratio in (1.5, 8))
    assert once == pytest.approx(2 / 10)
    assert beyond < once / 100


_WHOLE = dict.fromkeys(itertools.permutations("abcd", 2), 1.0)


def _learn_meetings(costs, beside):
    """Twenty spans of an all-to-all, in each of which other cells depart, and of what is calm `beside` it."""
    for number in range(BASELINE_MAX_SPANS):
        costs.learn(beside | _WHOLE | dict.fromkeys(list(_WHOLE)[number % 4 :: 4], math.e))


def test_nics_that_send_later_tell_as_well_how_healthy_ones_depart():
    """Where one NIC alone sent in the first span, what those departed by that it does not send to is known, too."""
    first = {("x", "y"): 1.0, ("x", "z"): 1.0}
    costs = _taught(first, 1)
    _learn_meetings(costs, first)
    assert costs.cell_chance(("a", "b"), 1.0, 1) > 0.1


def test_of_a_large_all_to_all_some_nics_tell_how_all_behave():
    """What the last eight do among themselves makes departures likelier where they are known, and not among eighty."""
    for nics, known in ((20, True), (80, False)):
        names, baseline = [f"h{nic}/0" for nic in range(nics)], _Costs()
        restless = set(itertools.permutations(names[-8:], 2))
        for span in range(BASELINE_MAX_SPANS):
            up = 1.0 + (span % 2 == 0)
            baseline.learn({way: up if way in restless else 1.0 for way in itertools.permutations(names, 2)})
        assert (baseline.cell_chance(("h0/0", "h1/0"), math.log(1.9), 1) > 1e-3) == known


def test_how_healthy_ways_depart_is_learnt_anew_with_them():
    """A plan has moved all connections: how far they departed before, and how seldom, tells nothing of now."""
    costs = _taught(_WHOLE, BASELINE_MAX_SPANS)
    assert costs.cell_chance(("a", "b"), 1.0, 1) < 0.01
    for cell in _WHOLE:
        costs.forget(cell)
    _learn_meetings(costs, {})
    assert costs.cell_chance(("a", "b"), 1.0, 1) > 0.1


def test_a_span_in_which_all_were_slow_makes_no_departure_of_one_likely():
    """Where all stand in a queue of a moment, as they write a checkpoint, no cell departs from the others."""
    calm, slow = _Costs(), _Costs()
    usual = dict.fromkeys(itertools.permutations("abc", 2), 1.0)
    for number in range(10):
        calm.learn(usual)
        slow.learn(dict.fromkeys(usual, 50.0 if number == 4 else 1.0))
    at = ("a", "b"), math.log(5), 1
    assert slow.cell_chance(*at) == pytest.approx(calm.cell_chance(*at))


def test_meetings_that_last_make_long_departures_likely():
    """Where a healthy cell that departs goes on doing so, many spans in a row are no more than one."""
    brief, long = HealthyDepartures([{0: 0.0}, {0: 1.0}] * 10), HealthyDepartures([{0: 0.0}] * 10 + [{0: 1.0}] * 10)
    assert brief.chance(1, 1.0, 1) == long.chance(1, 1.0, 1)
    assert brief.chance(1, 1.0, 6) < long.chance(1, 1.0, 6) / 10


def test_what_departs_often_is_likely_to_go_on():
    """Transfers meet on one link in three spans of four: that they do in twelve in a row tells nothing against it."""
    spans = [{0: 0.2 * (span % 4 > 0)} for span in range(20)]
    for span, shown in enumerate(spans):
        shown |= {other: 0.2 * ((7 * span + 3 * other) % 10 < 3) for other in range(1, 20)}
    healthy = HealthyDepartures(spans)
    assert healthy.chance(0, 0.2, 12) > 1e-3
    assert healthy.chance(1, 0.2, 12) < healthy.chance(0, 0.2, 12) / 1000


def test_a_side_of_few_cells_is_held_against_single_ones_where_hardly_any_was_seen():
    """Two calm rows of two cells do not make it certain that a third, which departs as cells do, is slow."""
    costs, nics = _Costs(), "abcdef"
    whole = {(one, other): 1.0 for one in nics for other in nics if one != other}
    for number in range(BASELINE_MAX_SPANS):
        departing = dict.fromkeys(list(whole)[number::BASELINE_MAX_SPANS], math.e)
        costs.learn({("a", "b"): 1.0, ("a", "c"): 1.0} if number % 10 == 5 else whole | departing)
    few = MatrixSlice(Component("nic", "a", "tx"), many=False)
    assert costs.side_chance(few, 1.0, 1) == costs.cell_chance(("a", "b"), 1.0, 1) > 0.01


def test_a_side_departs_as_far_as_most_of_its_cells():
    """One good cell in four does not clear a NIC, two do; a side with a single cell says nothing."""
    bad = {("a", peer): 1.0 for peer in "bcd"}
    assert slice_departures(bad | {("a", "e"): 0.0}, {})[MatrixSlice(Component("nic", "a", "tx"), many=True)] == 1.0
    assert (
        slice_departures(bad | {("a", "e"): 0.0, ("a", "f"): 0.0}, {})[
            MatrixSlice(Component("nic", "a", "tx"), many=True)
        ]
        == 0.0
    )
    assert all(side.component.name == "a" for side in slice_departures(bad, {}))


def test_table_has_rows_source_and_columns_destination():
    """The report's matrix is square over all NICs, with null where nothing was measured."""
    table = matrix_table({("h1/0", "h0/0"): 2.0, ("h0/0", "h2/0"): 3.0})
    assert table.nics == ["h0/0", "h1/0", "h2/0"]
    assert table.cells == [[None, None, 3.0], [2.0, None, None], [None, None, None]]


@pytest.mark.parametrize("seed", [0, *at_night(1, 2)])
def test_a_fault_stands_out_once_there_is_a_baseline(seed):
    """A NIC that becomes slow as soon as C4D says that it has a baseline is named."""
    job, detector = SimJob(8, MIX, seed=seed), Detector()
    assert not detector.has_baseline(job.name)
    for tick in simulate(job, (), 4.0):
        for window in tick.windows:
            detector.ingest_window(window)
        detector.evaluate(tick.time_s)
        if detector.has_baseline(job.name):
            break
    assert 1.0 < tick.time_s < 3.0
    slow = SimFault(SimFaultKind.NIC_RATE, 3, tick.time_s, factor=0.25, side="rx")
    found = drive(job, (slow,), tick.time_s + 2.0)
    assert [str(diagnosis.component) for diagnosis in found] == ["nic h3/0 (rx)"]
