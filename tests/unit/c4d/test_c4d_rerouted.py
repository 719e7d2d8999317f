"""What C4P moves may meet others, whose paths are well."""

import msgspec
import pytest
from c4d_telemetry import MIX, remade
from night_cases import at_night

from c4bench.c4d.detector import Detector
from c4bench.model.recording import PathsLearnt
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob

_MOVED_S = 3.1
_JOB = SimJob(8, MIX, seed=1)


def _rerouted(window, moved):
    """The window with one connection on another way."""
    conns = tuple(
        msgspec.structs.replace(one, source_port=50_000) if (one.rank, one.peer) == moved else one
        for one in window.conns
    )
    return remade(window, conns=conns)


def _ways(windows, moved, shared):
    """Every connection has its own link, except one that shares its link with the moved connection."""
    ends = {(one.rank, one.peer): one for window in windows for one in window.conns}
    hops = {pair: "met" if pair == shared else f"{one.source}>{one.destination}" for pair, one in ends.items()}
    ways = [(one.source, one.destination, one.source_port, (hops[pair],)) for pair, one in ends.items()]
    return PathsLearnt(0.0, (*ways, (ends[moved].source, ends[moved].destination, 50_000, ("met",))))


def _named(*faults, until_s, moved=(4, 1), shared=None):
    """What is named while a connection takes another way at `_MOVED_S`, to the link of the one it is `shared` with."""
    detector, found = Detector(), []
    for tick in simulate(_JOB, faults, until_s):
        if shared and not found and tick.time_s < 1.0:
            detector.ingest(_ways(tick.windows, moved, shared))
        for window in tick.windows:
            detector.ingest_window(_rerouted(window, moved) if window.end_s > _MOVED_S else window)
        found += detector.evaluate(tick.time_s)
    return [str(one.component) for one in found]


def _slow_path(at_s, factor):
    return SimFault(SimFaultKind.PATH_RATE, 2, at_s, factor=factor, peer=6)


@pytest.mark.parametrize("factor", [0.8, *at_night(0.94, 0.92, 0.9, 0.85, 0.7, 0.6)])
def test_a_path_that_shares_with_what_was_moved_is_no_finding(factor):
    """A path that is slower from the moment on at which another connection was moved is not blamed."""
    assert _named(_slow_path(_MOVED_S, factor), until_s=7.0) == []


def _slow_link(at_s, factor):
    return [SimFault(SimFaultKind.PATH_RATE, rank, at_s, factor=factor, peer=peer) for rank, peer in [(2, 6), (4, 1)]]


def test_a_link_that_a_moved_connection_shares_is_no_finding():
    """Both ways that cross it are slower from the moment on at which one of them came there."""
    assert _named(*_slow_link(_MOVED_S, 0.6), until_s=7.0, shared=(2, 6)) == []


def test_a_link_that_fails_apart_from_a_move_is_named():
    """A move explains nothing that begins when the moved connection's way is known."""
    assert _named(*_slow_link(_MOVED_S + 3.0, 0.6), until_s=8.5, shared=(2, 6)) == ["link met"]


def test_a_path_that_fails_apart_from_a_move_is_named():
    """A move explains nothing that begins a second after it."""
    assert _named(_slow_path(_MOVED_S + 1.0, 0.9), until_s=6.5) == ["path h2/0>h6/0"]


def test_a_move_at_the_same_nic_explains_nothing():
    """What leaves a NIC meets there whatever way it takes further on: that is no reason for its path to be slower."""
    assert _named(_slow_path(_MOVED_S, 0.9), moved=(6, 3), until_s=5.5) == ["path h2/0>h6/0"]


def test_an_explained_path_can_fail_as_any_other():
    """What a path costs beside what was moved is its measure from then on."""
    assert _named(_slow_path(_MOVED_S, 0.9), _slow_path(_MOVED_S + 5.4, 0.5), until_s=11.0) == ["path h2/0>h6/0"]


def test_a_nic_that_fails_while_a_connection_moves_is_named():
    """A move explains single paths, and no row or column."""
    slow = SimFault(SimFaultKind.NIC_RATE, 5, _MOVED_S, factor=0.6, side="rx")
    assert _named(slow, until_s=6.0) == ["nic h5/0 (rx)"]
