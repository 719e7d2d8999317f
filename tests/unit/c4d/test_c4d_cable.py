"""A NIC that loses both ways cannot be told from a cable between switches that all its lossy paths cross."""

import pytest

from c4bench.attribution.weigh import Blame
from c4bench.c4d.network.packet_loss import with_cable
from c4bench.model.diagnosis import Component

SENT, RECEIVED, OTHER = ("h7/0", "h1/0"), ("h2/0", "h7/0"), ("h6/0", "h3/0")
LINKS = {
    SENT: ("own-up", "up0", "to-h1"),
    RECEIVED: ("from-h2", "down0", "own-down"),
    OTHER: ("x", "up0", "down0", "y"),
}
NIC = Blame(Component("nic", "h7/0"), (SENT, RECEIVED), 1.0)
CABLE = (Component("link", "up0"), Component("link", "down0"))


@pytest.mark.parametrize(
    ("in_use", "well", "alternatives"),
    [
        ((SENT, RECEIVED, OTHER), (), CABLE),
        ((SENT, RECEIVED, OTHER), ("up0",), ()),
        ((SENT, RECEIVED, OTHER), ("down0",), ()),
        ((SENT, RECEIVED), (), ()),
    ],
    ids=["both directions", "one sends without loss", "one receives without loss", "nobody else crosses it"],
)
def test_a_cable_is_an_alternative_to_a_nic(in_use, well, alternatives):
    """Both directions of the cable become alternatives unless one carries without loss or is the NIC's own."""
    assert with_cable(NIC, LINKS, in_use, well).alternatives == alternatives


def test_a_side_and_a_link_stay_as_they_are():
    """Only a NIC as a whole is doubted: a side is told from a cable by the other direction."""
    for component in (Component("nic", "h7/0", "tx"), Component("link", "up0")):
        blame = Blame(component, (SENT,), 1.0)
        assert with_cable(blame, LINKS, (SENT, RECEIVED, OTHER), ()) == blame
