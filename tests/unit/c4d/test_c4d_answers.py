"""Acknowledgements that are lost now and then: the way back is to blame, though the way is well in between."""

import pytest

from c4bench.c4d.network.packet_loss import AckLossDetector
from c4bench.model.diagnosis import Component

CELL, OTHER = ("a", "b", "1"), ("a", "c", "1")
SLOW = 3.0


def _found(spans):
    """What is found after these spans, each with the cells that missed acknowledgements, and how far they departed."""
    answers = AckLossDetector(lambda _, departure, spans: 10.0 ** (-departure * spans))
    for opened_s, departures in enumerate(spans):
        answers.add({CELL: 0.0, OTHER: 0.0} | departures, departures, float(opened_s))
    return answers.find(lambda cell: {f"up:{cell[1]}", f"down:{cell[0]}"})


def test_the_way_back_is_to_blame():
    """A way was slower whenever it missed an acknowledgement: the NICs it came from and to, or what it may cross."""
    (loss,) = _found([{CELL: SLOW}, {}, {}, {CELL: SLOW}, {}, {}, {}, {CELL: SLOW}, {}])
    assert (loss.onset_s, loss.blame.component) == (0.0, Component("path", "b>a"))
    ends = {Component("nic", "b", "tx"), Component("nic", "a", "rx")}
    assert set(loss.blame.alternatives) == ends | {Component("link", "up:b"), Component("link", "down:a")}


@pytest.mark.parametrize(
    "spans",
    [
        [{CELL: SLOW}] * 2,
        [{CELL: SLOW}, {OTHER: SLOW}] * 2,
        [{CELL: SLOW}] * 3 + [{CELL: 0.0}],
        [{CELL: 2.0}] * 3,
        [{CELL: SLOW}, *[{}] * 30] * 3,
    ],
    ids=["twice", "of two ways", "not always slower", "may be chance", "seldom"],
)
def test_what_is_less_than_that_is_no_finding(spans):
    """Few, or such as healthy ways show, or so seldom that nobody is slowed down by it."""
    assert _found(spans) == []


def test_two_ways_back_share_a_nic():
    """Where the acknowledgements of several that a NIC sends to are lost, it hears none."""
    (loss,) = _found([{CELL: SLOW, OTHER: SLOW}] * 3)
    assert loss.blame.component == Component("nic", "a", "rx")


def test_a_nic_explains_what_its_partners_count():
    """A NIC that misses acknowledgements both ways has partners that count, too: the ways between them are well."""
    far = [("a", nic, "1") for nic in "bcd"], [(nic, "a", "1") for nic in "bcd"]
    between = ("b", "c", "1"), ("c", "d", "1")
    (loss,) = _found([dict.fromkeys((*far[0], *far[1], *between), SLOW)] * 3)
    assert loss.blame.component == Component("nic", "a")
    found = _found([dict.fromkeys((*far[0], *far[1], ("b", "e", "1")), SLOW)] * 3)
    assert ("e", "b") in {cell[:2] for loss in found for cell in loss.blame.cells}
