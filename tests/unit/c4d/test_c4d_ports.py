"""NICs whose ports went down say so themselves: alone they or their links are to blame, together their switch."""

import pytest
from c4d_telemetry import comm, op, window

from c4bench.c4d.detector import Detector
from c4bench.c4d.observe.shared_fabric import SharedFabric
from c4bench.model.diagnosis import Cause, Component, Syndrome
from c4bench.model.telemetry import NicRecord, RankRecord

RANKS = 4
FALL_TICK, LAST_TICK = 20, 40
# h0 and h1 are below one leaf, h2 and h3 below the other, which answers from each spine by another link.
LEAF = {0: ("10.0.0.9", "10.0.0.5"), 1: ("10.0.0.9", "10.0.0.5"), 2: ("10.1.0.9", "10.1.0.5"), 3: ("10.1.0.5",)}
WAYS = {
    (f"h{source}/0", f"h{destination}/0", port): (f"10.9.{source}.254", spine, f"10.9.{destination}.1")
    for source in range(RANKS)
    for destination in range(RANKS)
    if source != destination
    for port, spine in enumerate(LEAF[destination])
}


def records(rank, tick, state, ended):
    """A rank that stands still from the fall on; with `ended` its process ends three ticks later."""
    fallen = tick >= FALL_TICK
    seq = min(tick, FALL_TICK)
    entered_s = seq / 10 - 0.05
    over = ended and tick >= FALL_TICK + 3
    return {
        "comms": [comm(RANKS)],
        "ranks": [RankRecord("job", rank, f"h{rank}", 100, "exited" if over else "running", 1 if over else None)],
        "ops": [op(rank, seq, entered_s, 0.0 if fallen else entered_s + 0.01)],
        "nics": [NicRecord(f"h{rank}/0", state if fallen else "linkup")],
    }


def found(states, *, ways=WAYS, ended=False, back_tick=LAST_TICK):
    """What is found when the ports of these ranks go to these states, and come back too late."""
    detector, said = Detector(SharedFabric(ways)), []
    for tick in range(1, LAST_TICK):
        for rank in range(RANKS):
            told = records(rank, tick, states.get(rank, "linkup") if tick < back_tick else "linkup", ended)
            detector.ingest_window(window(f"h{rank}", tick, tick / 10, **told))
        said += detector.evaluate(tick / 10)
    return said


@pytest.mark.parametrize("ended", [False, True])
def test_a_leaf_is_named_when_all_its_ports_are_down(ended):
    """Both NICs below a leaf have lost their carrier, whether the job then hangs or ends."""
    (diagnosis,) = found({2: "polling", 3: "polling"}, ended=ended)
    assert (diagnosis.syndrome, diagnosis.cause) == (Syndrome.COMMUNICATION_HANG, Cause.PORT_DOWN)
    assert (diagnosis.component, diagnosis.alternatives) == (Component("switch", "10.1.0.5"), ())


def test_a_port_without_a_carrier_is_its_links():
    """One NIC below a leaf has lost its carrier: its cable, or what is at either end."""
    (diagnosis,) = found({2: "polling"})
    assert (diagnosis.component, diagnosis.alternatives) == (Component("link", "10.9.2.1"), (Component("nic", "h2/0"),))


def test_a_port_is_its_switchs_too_where_the_job_sees_no_other_of_it():
    """One NIC below a leaf has lost its carrier, and nothing of the job shows whether that leaf is up."""
    (diagnosis,) = found({2: "polling"}, ways={way: hops for way, hops in WAYS.items() if "h3/0" not in way})
    others = Component("nic", "h2/0"), Component("switch", "10.1.0.5")
    assert (diagnosis.component, diagnosis.alternatives) == (Component("link", "10.9.2.1"), others)


def test_a_port_that_was_switched_off_is_its_nics():
    """A disabled port is the host's doing."""
    (diagnosis,) = found({2: "disabled"})
    assert (diagnosis.component, diagnosis.alternatives) == (Component("nic", "h2/0"), ())


def test_a_port_that_came_back_is_to_blame_for_what_it_ended():
    """A flap is over before anybody asks; what it broke has not moved since."""
    (diagnosis,) = found({2: "disabled"}, ended=True, back_tick=FALL_TICK + 2)
    assert diagnosis.component == Component("nic", "h2/0")


def test_without_known_ways_each_nic_is_named():
    """Nothing tells which switch two NICs share."""
    said = found({2: "polling", 3: "polling"}, ways={})
    assert {diagnosis.component for diagnosis in said} == {Component("nic", "h2/0"), Component("nic", "h3/0")}


def test_a_port_is_not_believed_of_another_host():
    """A host's word about another host's NIC is dropped."""
    detector = Detector()
    detector.ingest_window(window("h0", 1, 0.1, nics=[NicRecord("h1/0", "disabled")]))
    assert detector.dropped_by_reason == {"foreign NIC": 1}


def test_ranks_that_go_on_have_no_use_for_the_port():
    """A job whose ranks work on after a port of theirs went down does not hang for it."""
    detector, said = Detector(SharedFabric(WAYS)), []
    for tick in range(1, LAST_TICK):
        for rank in range(RANKS):
            told = records(rank, tick, "linkup", ended=False)
            entered_s = min(tick, LAST_TICK - 15) / 10 - 0.05
            told["ops"] = [op(rank, min(tick, LAST_TICK - 15), entered_s, 0.0 if tick >= LAST_TICK - 15 else entered_s)]
            told["nics"] = [NicRecord(f"h{rank}/0", "disabled" if rank == 2 and tick > 10 else "linkup")]
            detector.ingest_window(window(f"h{rank}", tick, tick / 10, **told))
        said += detector.evaluate(tick / 10)
    assert not any(diagnosis.cause is Cause.PORT_DOWN for diagnosis in said)
