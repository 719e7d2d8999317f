"""The links that two slow paths may share."""

import pytest

from c4bench.attribution.weigh import Blame, path_component
from c4bench.c4d.network.pipeline import shared_links

ONE, OTHER = ("a", "c", "1"), ("d", "b", "1")


@pytest.mark.parametrize(
    ("ways", "named"),
    [
        ({ONE: ("up1", "down1"), OTHER: ("up2", "down2")}, ["link up1", "link down1"]),
        ({ONE: ("up1", "down1"), OTHER: ("up2", "down2"), ("e", "f", "1"): ("up1",)}, ["link down1"]),
        ({ONE: ("up1", "down1"), OTHER: ("down1",)}, []),
        ({ONE: ("up3", "down3"), OTHER: ("up2", "down2")}, []),
        ({}, []),
    ],
    ids=["acknowledgements", "except what others cross", "their data meet", "nowhere", "unknown"],
)
def test_two_paths_may_have_a_link_in_common(ways, named):
    """A slow link delays what it carries, and the acknowledgements of what goes the other way."""
    points = [Blame(path_component(cell), (cell,), 1.4) for cell in (ONE, OTHER)]
    found = shared_links(points, ways, lambda cell: {"up1", "down1"} if cell == OTHER else ())
    assert [str(part) for part in found.suspects] == named if found else not named
    assert shared_links(points[:1], ways, lambda _: {"up1"}) is None


def test_two_paths_that_are_no_slower_than_a_meeting_makes_them_have_none():
    """Twice as long is what sharing with another does."""
    points = [Blame(path_component(cell), (cell,), 0.7) for cell in (ONE, OTHER)]
    assert shared_links(points, {ONE: ("up1",), OTHER: ("up2",)}, lambda _: {"up1"}) is None
