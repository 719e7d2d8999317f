"""A slow link makes paths slow by what crosses it either way: by data, and by acknowledgements of what goes back."""

import itertools

import pytest
from night_cases import at_night

from c4bench.c4d.detector import Detector
from c4bench.c4d.observe.shared_fabric import SharedFabric
from c4bench.model.diagnosis import Component
from c4bench.model.step import StepOp
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob

RANKS, ONSET_S, UNTIL_S = 8, 2.5, 6.0
RING = SimJob(RANKS, (StepOp("all_reduce", 4 << 20, 0.02),), seed=1)
# Data of the second crosses the slow link, which acknowledgements of the others may.
SLOW = ((2, 3), (3, 4), (6, 7))


def ways(back):
    """Each rank's data go over a link of their own; what goes from rank 7 to rank 6 goes over `back`."""
    pairs = {(rank, (rank + 1) % RANKS): f"link{rank}" for rank in range(RANKS)} | {(7, 6): back}
    return {
        (f"h{source}/0", f"h{destination}/0", port): (f"at{source}", link, f"to{destination}")
        for (source, destination), link in pairs.items()
        for port in range(0xC000, 0xC000 + RANKS)
    }


def heard(detector, job, faults):
    """All that is said of a job with these faults."""
    found = []
    for tick in simulate(job, faults, UNTIL_S):
        for window in tick.windows:
            detector.ingest_window(window)
        found += detector.evaluate(tick.time_s)
    return found


def test_a_nic_between_two_slow_paths_may_be_a_link():
    """Data of one path and acknowledgements of the other may cross a slow link: it is among the suspects."""
    faults = [SimFault(SimFaultKind.PATH_RATE, rank, ONSET_S, factor=0.25, peer=peer) for rank, peer in SLOW]
    found = heard(Detector(SharedFabric(ways("link3"))), RING, faults)
    (nic,) = (one for one in found if one.component.name == "h3/0")
    assert Component("link", "link3") in nic.alternatives


@pytest.mark.parametrize("factor", [0.7, *at_night(0.3)])
@pytest.mark.parametrize(
    "crossing",
    [((4, 2), (5, 2), (6, 2), (4, 1)), ((4, 2), (5, 2), (6, 2), (7, 2), (4, 3), (5, 3))],
    ids=["most to one NIC", "to two NICs"],
)
def test_a_nic_is_not_named_for_what_a_slow_link_holds_up(crossing, factor):
    """Most of what a NIC takes comes over the link and keeps it busy: the link is named, and nothing else."""
    ways = {
        (f"h{source}/0", f"h{destination}/0", port): (
            f"at{source}",
            "slow" if (source, destination) in crossing else f"link{source}{destination}",
            f"to{destination}",
        )
        for source, destination in itertools.permutations(range(RANKS), 2)
        for port in range(0xC000, 0xC000 + RANKS)
    }
    job = SimJob(RANKS, (StepOp("all_to_all", 4 << 20, 0.02),), seed=1, jitter=0.01)
    faults = [SimFault(SimFaultKind.PATH_RATE, rank, ONSET_S, factor=factor, peer=peer) for rank, peer in crossing]
    assert [str(one.component) for one in heard(Detector(SharedFabric(ways)), job, faults)] == ["link slow"]
