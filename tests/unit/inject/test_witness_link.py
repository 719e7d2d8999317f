"""Witnesses of links see a fault only where something went down that was up before."""

import errno
import time

import msgspec
import pytest
from fakes import nic_request

from c4bench.inject.witness import link
from c4bench.inject.witness.link import LinkFlaps, interface_state, ports_state
from c4bench.model.fabric import Nic
from c4bench.model.fault import FaultRequest, SwitchPort

UP, DOWN = {"running": 1.0}, {"running": 0.0}
RDMA_UP, RDMA_DOWN = UP | {"port": 4.0}, DOWN | {"port": 1.0}
PORTS = [SwitchPort("leaf0", "up0"), SwitchPort("leaf0", "up1")]


@pytest.fixture
def states(monkeypatch):
    """What the interface is found to be, one reading after the other; the last of them stays."""
    readings = []
    monkeypatch.setattr(link, "state", lambda _: readings.pop(0) if len(readings) > 1 else readings[0])
    return readings


def at_once(fault, **parameters):
    """A request whose witness looks once."""
    return msgspec.structs.replace(nic_request(fault, **parameters), witness_s=0.0)


@pytest.mark.parametrize(
    ("before", "during", "seen"),
    [
        (UP, DOWN, True),
        (RDMA_UP, RDMA_DOWN, True),
        (UP, UP, False),
        (DOWN, DOWN, False),
        (RDMA_UP, DOWN | {"port": 4.0}, False),
        (RDMA_UP, UP | {"port": 1.0}, False),
        (RDMA_DOWN, RDMA_DOWN, False),
        (UP | {"port": 1.0}, RDMA_DOWN, False),
    ],
)
def test_a_link_is_seen_to_fail_if_all_of_it_was_up_and_all_of_it_is_down(states, before, during, seen):
    """A link that stays up, was down before, or whose RDMA port stays active proves no fault."""
    states[:] = [before]
    witness = interface_state(at_once("nic.down"))
    assert witness.before() == before
    states[:] = [during]
    began_s = time.time()
    evidence = witness.during(began_s)
    assert evidence.values == during
    assert (evidence.observed_s is not None) == seen
    assert not seen or began_s <= evidence.observed_s <= time.time()


@pytest.mark.parametrize(
    ("before", "after", "recovered"),
    [
        (UP, UP, True),
        (UP, DOWN, False),
        (RDMA_UP, UP | {"port": 2.0}, False),
        (RDMA_UP, DOWN | {"port": 4.0}, False),
        (DOWN, DOWN, True),
    ],
)
def test_a_link_has_recovered_when_it_is_as_it_was(states, before, after, recovered):
    """Interface and RDMA port must be up again, except where they were not before the fault."""
    states[:] = [before]
    witness = interface_state(at_once("nic.down"))
    witness.before()
    states[:] = [after]
    assert witness.after() == (after, recovered)


@pytest.mark.parametrize(
    ("before", "during", "values", "seen"),
    [
        (UP, [UP, DOWN, DOWN, UP], (1.0, 1.0), True),
        (UP, [UP], (0.0, 1.0), False),
        (UP, [DOWN], (1.0, 0.0), False),
        (DOWN, [DOWN, UP], (1.0, 1.0), False),
    ],
)
def test_a_link_flaps_if_it_goes_down_and_comes_up(states, before, during, values, seen):
    """A link that only stays up, only stays down, or was down before the fault does not flap."""
    states[:] = [before]
    witness = LinkFlaps(at_once("nic.flap", period_s=0.04, duty=0.5))
    assert witness.before() == before
    states[:] = during
    evidence = witness.during(time.time())
    assert tuple(evidence.values[name] for name in ("down", "up")) == values
    assert (evidence.observed_s is not None) == seen


def test_a_flap_is_observed_when_the_link_is_first_down(states):
    """The time that counts is that of the first fall, not of the return."""
    states[:] = [UP]
    witness = LinkFlaps(at_once("nic.flap", period_s=0.4, duty=0.5))
    witness.before()
    states[:] = [DOWN] * 20 + [UP]
    began_s = time.time()
    assert witness.during(began_s).observed_s - began_s < 0.01 < time.time() - began_s


@pytest.mark.parametrize(("after", "recovered"), [([UP], True), ([DOWN], False), ([UP, DOWN], False)])
def test_a_link_that_falls_again_has_not_stopped_to_flap(states, after, recovered):
    """It must still be up when it would have been down again."""
    states[:] = after
    values, whole = LinkFlaps(at_once("nic.flap", period_s=0.04, duty=0.5)).after()
    assert (values, whole) == ({"running": float(recovered)}, recovered)


@pytest.mark.parametrize(
    ("before", "during", "seen", "recovered"),
    [
        ({"up0", "up1"}, set(), True, False),
        ({"up0", "up1"}, {"up1"}, False, False),
        ({"up0", "up1"}, {"up0", "up1"}, False, True),
        ({"up1"}, set(), True, False),
        ({"up1"}, {"up1"}, False, True),
        (set(), set(), False, True),
    ],
)
def test_a_switch_is_seen_to_fail_if_every_port_that_was_up_is_down(monkeypatch, before, during, seen, recovered):
    """One port that stays up is no dead switch, and a switch without a port that was up proves nothing."""
    running = before
    monkeypatch.setattr(link.targets, "switch_ports", lambda _: PORTS)
    monkeypatch.setattr(link, "state", lambda port: UP if port.netdev in running else DOWN)
    witness = ports_state(FaultRequest("switch.down", "leaf0", witness_s=0.0))
    assert witness.before() == {"running": float(len(before))}
    running = during
    evidence = witness.during(time.time())
    assert evidence.values == {"running": float(len(during & before))}
    assert (evidence.observed_s is not None) == seen
    assert witness.after().recovered == recovered


def test_a_link_is_read_where_the_kernel_shows_it(monkeypatch, tmp_path):
    """The carrier of an interface; the state of an RDMA port as a number, where the interface has a device."""
    port = tmp_path / "sys/class/infiniband/rxe0/ports/1/state"
    port.parent.mkdir(parents=True)
    port.write_text("4: ACTIVE\n")
    monkeypatch.setattr(link, "Path", lambda path: tmp_path / str(path).lstrip("/"))
    assert link.state(Nic("h5", 0, "", "lo", "", 1e9)) == UP
    assert link.state(Nic("h5", 0, "rxe0", "lo", "", 1e9)) == RDMA_UP
    assert link.running([SwitchPort("s", "lo"), SwitchPort("s", "lo")]) == 2


def test_the_carrier_is_known_from_a_flag_where_the_driver_has_no_link_query(monkeypatch):
    """Other errors of the query are errors."""
    real, refusal = link.fcntl.ioctl, [errno.EOPNOTSUPP]

    def ioctl(sock, number, request):
        if number == link._SIOCETHTOOL:
            raise OSError(refusal[0], "refused")
        return real(sock, number, request)

    monkeypatch.setattr(link.fcntl, "ioctl", ioctl)
    assert link.carrier(SwitchPort("s", "lo"))
    refusal[0] = errno.ENODEV
    with pytest.raises(OSError, match="refused"):
        link.carrier(SwitchPort("s", "lo"))
