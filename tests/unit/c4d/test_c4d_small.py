"""Slowness near the noise: a tenth off a link, a twentieth off a rank; named in time, and nobody else."""

import pytest
from c4d_telemetry import MIX, drive, period_of
from night_cases import at_night

from c4bench.model.diagnosis import Cause, Component, Syndrome
from c4bench.model.step import RankGroup, StepOp
from tools.sim.model import SimFault, SimFaultKind, SimJob

_AT_S = 3.1
_GROUPS = (
    StepOp("all_gather", 4 << 20, 0.01, RankGroup("tensor", 4, 1)),
    StepOp("all_reduce", 8 << 20, 0.02, RankGroup("data", 3, 4)),
)
_JOBS = {"mix": SimJob(8, MIX, seed=1), "groups": SimJob(12, _GROUPS, seed=2)}


@pytest.mark.parametrize(
    ("layout", "side"),
    [("mix", "rx"), *at_night(("groups", "tx"), ("mix", "tx"), ("groups", "rx"))],
)
def test_nic_that_lost_a_tenth_is_named(layout, side):
    """A NIC at 90 % is one finding, on the right side, within two seconds of onset, with its onset."""
    (found,) = drive(_JOBS[layout], [SimFault(SimFaultKind.NIC_RATE, 5, _AT_S, factor=0.9, side=side)], 6.3)
    assert (found.cause, found.component) == (Cause.TRANSFER_SLOW, Component("nic", "h5/0", side))
    assert found.named_s <= _AT_S + 2.0
    assert found.onset_s == pytest.approx(_AT_S, abs=0.5)


def test_path_that_lost_a_tenth_is_named():
    """A path at 90 % is named within two seconds."""
    (found,) = drive(_JOBS["mix"], [SimFault(SimFaultKind.PATH_RATE, 2, _AT_S, factor=0.9, peer=6)], 6.3)
    assert (found.syndrome, str(found.component)) == (Syndrome.COMMUNICATION_SLOW, "path h2/0>h6/0")
    assert found.named_s <= _AT_S + 2.0


@pytest.mark.parametrize(
    ("layout", "factor", "jitter"),
    [("groups", 1.1, 0.03), *at_night(("mix", 1.05, 0.01), ("mix", 1.1, 0.03), ("groups", 1.05, 0.01))],
)
def test_rank_a_little_slow_is_named(layout, factor, jitter):
    """5 % at 1 % jitter and 10 % at 3 %, within five iterations or two seconds, in any group."""
    job = SimJob(_JOBS[layout].ranks, _JOBS[layout].ops, seed=3, jitter=jitter)
    (found,) = drive(job, [SimFault(SimFaultKind.COMPUTE, 3, _AT_S, factor=factor)], 6.3)
    assert (found.cause, found.component) == (Cause.COMPUTE_SLOW, Component("rank", "job:3"))
    assert found.named_s <= _AT_S + max(5 * period_of(_JOBS["mix"]), 2.0)


@pytest.mark.nightly
def test_slow_rank_and_slow_nic_are_both_named():
    """A late rank does not hide a NIC that is slow at the same time."""
    faults = [
        SimFault(SimFaultKind.COMPUTE, 3, _AT_S, factor=1.3),
        SimFault(SimFaultKind.NIC_RATE, 6, _AT_S, factor=0.5, side="rx"),
    ]
    found = drive(_JOBS["mix"], faults, 7.0)
    assert {str(one.component) for one in found} == {"rank job:3", "nic h6/0 (rx)"}


def test_evidence_is_in_words_and_numbers():
    """A finding says how sure it is, by which figures, and what would refute it."""
    (found,) = drive(_JOBS["mix"], [SimFault(SimFaultKind.NIC_RATE, 5, _AT_S, factor=0.5, side="rx")], 5.5)
    assert found.figures["slow_cells"] == 7
    assert found.figures["worst_s_per_byte"] == pytest.approx(8 / 10e9 / 0.5, rel=0.2)
    assert 0 < found.confidence < 1
    assert "probe" in found.refuted_by
