"""Endpoints on real devices: discovery, waiting, errors and reconnecting."""

import pytest


@pytest.mark.parametrize("waiting", ["events", "polling"])
def test_both_ways_of_waiting_see_completions(consoles, waiting):
    """Writes complete both with event-driven and with polled completions."""
    near, far = consoles
    near_end, far_end = near("open", waiting=waiting), far("open")
    near("connect", end=far_end)
    far("connect", end=near_end)
    # Few: while a process spins, a lab's NIC works on when its kernel's timer ticks.
    assert near("write", times=3) == ""


def test_broken_connection_is_named_and_comes_back(pair):
    """A refused write reports its status and breaks the endpoint; reconnecting both ends repairs it."""
    near, far, near_end, far_end = pair
    near("connect", end=far_end)
    far("connect", end=near_end)
    assert near("write", rkey=far_end["rkey"] ^ 0xFFFF00) == "REM_ACCESS_ERR"
    assert near("state")["qp"] == "ERR"
    assert near("write") == "WR_FLUSH_ERR"
    near("connect", end=far_end)
    far("connect", end=near_end)
    assert near("write", times=4) == ""
    assert near("state")["qp"] == "RTS"


def test_broken_endpoints_can_be_closed(pair):
    """After an error everything can be closed and opened again, with work still posted at the time of the error."""
    near, far, near_end, far_end = pair
    near("connect", end=far_end)
    far("connect", end=near_end)
    assert near("write", rkey=far_end["rkey"] ^ 0xFFFF00) == "REM_ACCESS_ERR"
    near_end, far_end = near("open"), far("open")
    near("connect", end=far_end)
    far("connect", end=near_end)
    assert near("write") == ""


def test_port_events_are_heard(pair, inject):
    """The port's own host gets events when its link goes down and up, and can still use the device."""
    near = pair[0]
    with inject("nic.down", host=near.nic.host, nic=0):
        assert "PORT_ERR" in near("events")
        assert near("find")["state"] == "DOWN"
    assert "PORT_ACTIVE" in near("events")
    assert near("find")["state"] == "ACTIVE"


def test_a_port_is_found_by_its_address(consoles):
    """Discovery finds the inventory's NIC by address: active, with its GID and an MTU."""
    for console in consoles:
        found = console("find")
        assert (found["device"], found["state"]) == (console.nic.device, "ACTIVE")
        assert found["active_mtu_bytes"] in {256, 512, 1024, 2048, 4096}
        assert found["netdev"] in {console.nic.netdev, ""}


def test_smaller_mtu_of_both_ends_is_used(pair):
    """An endpoint whose far end has a smaller MTU sends packets of that size."""
    near, far, near_end, far_end = pair
    near("connect", end=with_mtu(far_end, 1024))
    far("connect", end=with_mtu(near_end, 1024))
    before = near("counters")
    assert near("write", times=4) == ""
    sent = near("counters").get("sent_pkts", 0) - before.get("sent_pkts", 0)
    if not sent:
        pytest.skip("no-counter: this device does not count the packets it sends")
    assert 4 * 1024 <= sent < 1.1 * 4 * 1024


def with_mtu(end, mtu_bytes):
    """The end as if its port had this MTU."""
    return end | {"remote": end["remote"] | {"mtu_bytes": mtu_bytes}}
