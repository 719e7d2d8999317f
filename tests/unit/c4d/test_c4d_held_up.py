"""A slow link makes paths slow by what crosses it either way: by data, and by acknowledgements of what goes back."""

import pytest

from c4bench.c4d.detector import Detector
from c4bench.c4d.fabric import Fabric
from c4bench.model.diagnosis import Component
from c4bench.model.step import StepOp
from c4bench.sim.job import simulate
from c4bench.sim.model import SimFault, SimFaultKind, SimJob

RANKS, ONSET_S, UNTIL_S = 8, 4.0, 8.0
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


@pytest.mark.parametrize(("back", "beside"), [("link3", set()), ("link9", {"path h6/0>h7/0"})])
def test_a_path_is_not_named_for_what_may_hold_up_its_acknowledgements(back, beside):
    """Beside a NIC that may be a link, a third path is named only if nothing of it may cross that link."""
    detector, found = Detector(Fabric(ways(back))), []
    faults = [SimFault(SimFaultKind.PATH_RATE, rank, ONSET_S, factor=0.25, peer=peer) for rank, peer in SLOW]
    for tick in simulate(RING, faults, UNTIL_S):
        for window in tick.windows:
            detector.feed(window)
        found += detector.judge(tick.time_s)
    (nic,) = (one for one in found if one.component.name == "h3/0")
    assert Component("link", "link3") in nic.alternatives
    assert {str(one.component) for one in found if one is not nic} == beside
