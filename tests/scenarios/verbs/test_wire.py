"""Packets have the requested source ports on the wire, and take the requested paths by the switches' counters."""

import pytest

from c4bench.control.paths.switches import carried_bytes
from c4bench.model.measurement import Clock

WRITE_BYTES = 1 << 20
WRITES = 4


@pytest.fixture
def connected(pair, refused):
    """The near console, able to see its own packets, and how to connect both ends with a source port."""
    near, far, near_end, far_end = pair
    try:
        near("seen")
    except refused as error:
        pytest.skip(f"no-capture: {error}")

    def connect(source_port=0):
        believed = near("connect", end=far_end, source_port=source_port)
        far("connect", end=near_end)
        return believed

    connect()
    near("write")
    if not near("seen"):
        pytest.skip("no-capture: packets of this NIC are not seen on its network interface")
    return near, far, connect


@pytest.fixture
def ports(atlas, connected):
    """A source port for each path from the near NIC to the far one."""
    near, far, _ = connected
    return {path.source_port: path.hops for path in atlas.paths(near.nic.name, far.nic.name)}


def test_source_ports_are_on_the_wire(connected, ports):
    """A connection's packets carry the source port it was connected with, and only that."""
    near, _, connect = connected
    seen = {}
    for port in [*ports, 0xC000, 0xFFFF]:
        connect(port)
        assert near("write", times=WRITES) == ""
        seen[port] = near("seen")
    assert seen == {port: [port] for port in seen}


def test_ecmp_port_is_the_one_predicted(connected):
    """Without a choice, the packets carry the port that is derived from both QP numbers."""
    near, _, connect = connected
    believed = connect()
    assert near("write", times=WRITES) == ""
    assert near("seen") == [believed]


def test_live_connection_moves(connected, ports, switches, refused, measure):
    """A connected endpoint moves to every path: the new port is on the wire, the bytes on that path's links only."""
    near, _, connect = connected
    connect(min(ports))
    right = 0
    for port, hops in ports.items():
        try:
            near("move", source_port=port)
        except refused as error:
            pytest.skip(f"no-live-move: {error}")
        before = switches.ports()
        assert near("write", times=WRITES) == ""
        assert near("seen") == [port]
        right += on_path(carried_bytes(before, switches.ports()), hops)
    if switches.any:
        measure("live_move.on_path_fraction", right / len(ports), equals=1, clock=Clock.NONE, paths=len(ports))


def test_live_connection_moves_back_to_ecmp(connected, ports, refused):
    """Port 0 returns a connection to ECMP: the port derived from its QP numbers is on the wire again."""
    near, _, connect = connected
    ecmp = connect()
    try:
        near("move", source_port=max(ports))
        near("move", source_port=0)
    except refused as error:
        pytest.skip(f"no-live-move: {error}")
    assert near("write") == ""
    assert near("seen") == [ecmp]


def on_path(carried, hops):
    """Whether every link of the path, and no other link in that direction, carried what was written."""
    full = {hop for hop, count in carried.items() if count >= WRITE_BYTES * WRITES}
    return full == {hop for hop in hops if hop in carried}
