"""Which packets between hosts cross a switch's port, by the atlas: in the direction that a fault hurts."""

import msgspec
import pytest

from c4bench.control.paths.switches import PortCount
from c4bench.inject.crossings import KnownCrossings
from c4bench.model.fabric import Host, Nic
from c4bench.model.fault import FaultRequest
from c4bench.model.graph import FabricGraph, HostPort, Trunk
from tools.bench.fabrics import clos

RATE = 10e9
NAMES = [f"h{number}" for number in range(4)]
ATLAS = clos(4, 2, 2).atlas([(f"{a}/0", f"{b}/0") for a in NAMES for b in NAMES if a != b])
HOSTS = [Host(name, "", (Nic(name, 0, "rxe0", "eth1", f"10.0.0.{name[1:]}", RATE),)) for name in NAMES]
GRAPH = FabricGraph(
    ("leaf0", "leaf1", "spine0", "spine1"),
    tuple(NAMES),
    tuple(HostPort(f"h{n}", f"leaf{n // 2}", RATE, nic=0, port=f"p{n}") for n in range(4)),
    tuple(
        Trunk(f"leaf{leaf}", f"spine{spine}", RATE, a_port=f"up{spine}", b_port=f"down{leaf}")
        for leaf in range(2)
        for spine in range(2)
    ),
)
SWITCHES = {"up": ("spine{1}", "down{0}"), "down": ("leaf{1}", "up{0}"), "in": ("leaf{1}", "p")}


def ports():
    """The switches' ports by the address at which links enter them."""
    found = {}
    for hop in ATLAS.hops:
        kind, _, ends = hop.partition(":")
        if kind in SWITCHES:
            near, _, far = ends.partition(">")
            switch, port = (text.format(near, far) for text in SWITCHES[kind])
            found[hop] = PortCount(switch, port, 0, 0, rate_bps=2 * RATE)
    return found


@pytest.fixture
def crossings():
    return KnownCrossings(ATLAS, GRAPH, ports(), HOSTS)


@pytest.mark.parametrize(("direction", "hop"), [("tx", "up:0>1"), ("both", "up:0>1"), ("rx", "down:1>0")])
def test_the_packets_take_the_link_that_is_hurt(crossings, direction, hop):
    """What the port sends, unless the fault is of what it receives."""
    asked = FaultRequest("link.loss", "leaf0", port="up1", parameters={"direction": direction})
    found = crossings(asked)
    paths = ATLAS.paths(found.source.name, found.target.name)
    assert [hop in path.hops for path in paths if path.source_port == found.source_port] == [True]
    assert found.rate_bps == 2 * RATE


def test_a_port_that_no_path_crosses_has_none(crossings):
    """Neither one that is not there, nor any between hosts that are not known."""
    assert crossings(FaultRequest("link.loss", "leaf0", port="up7")) is None
    nobody = KnownCrossings(ATLAS, GRAPH, ports(), [msgspec.structs.replace(one, nics=()) for one in HOSTS])
    assert nobody(FaultRequest("link.loss", "leaf0", port="up1")) is None


def test_a_source_port_that_does_not_decide_the_path_crosses_nothing():
    """Where switches hash the queue pair too, no packet is known to cross a port."""
    by_qp = clos(4, 2, 2).atlas(ATLAS.pairs)
    by_qp.hash = "dest-qp"
    known = KnownCrossings(by_qp, GRAPH, ports(), HOSTS)
    assert known(FaultRequest("link.loss", "leaf0", port="up1")) is None
