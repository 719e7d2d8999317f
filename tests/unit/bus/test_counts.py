"""What the master adds up of what detectors say that they dropped."""

import ssl

import pytest

from c4bench.budget import BUS_MESSAGE, OverBudgetError
from c4bench.bus.connection import Bus
from c4bench.bus.lease import HeldLease
from c4bench.bus.master import BusDetection
from c4bench.bus.subjects import Subjects
from c4bench.control.state.store import Store


@pytest.fixture
def detection():
    """A master's, without a bus."""
    return BusDetection(Bus("nats://127.0.0.1:1", ssl.create_default_context(), "m", Subjects("c4")), Store(None))


def test_each_count_is_added_once(detection):
    """A detector says how much it has dropped in all; the master adds what is new, of several detectors."""
    for source, count in (("a", 2), ("a", 5), ("b", 1), ("a", 5), ("a", 1)):
        detection._add(source, HeldLease("", dropped={"h0": {"late": count}, "bus": {"unreadable lease": 1}}))
    assert detection.dropped["h0"] == {"late": 6}
    assert detection.left_out == {"unreadable lease": 2}


def test_names_of_hosts_are_bounded(detection):
    """However many hosts a detector invents, the master keeps a bounded number, and goes on counting known ones."""
    detection._add("a", HeldLease("", dropped={"h0": {"late": 1}}))
    with pytest.raises(OverBudgetError):
        detection._add("b", HeldLease("", dropped={f"x{number}": {"late": 1} for number in range(BUS_MESSAGE.names)}))
    detection._add("a", HeldLease("", dropped={"h0": {"late": 3}}))
    assert {host: dict(reasons) for host, reasons in detection.dropped.items() if reasons} == {"h0": {"late": 3}}
