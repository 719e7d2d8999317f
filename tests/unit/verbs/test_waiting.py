"""Waiting on ports, over the loopback transport."""

import math
import os
import threading
import time

import pytest

from c4bench.errors import UsageError
from c4bench.verbs.transport import Completion, PortEvent
from c4bench.verbs.waiting import BusyPolled, EventDriven, Ready, waiter
from tools.loopback import LoopbackPort, Network

DONE = Completion(17, 0, "", received=False, immediate=0)
NOTHING = Ready([], [], [])


@pytest.fixture
def ports():
    made = [LoopbackPort(Network(), f"port{index}") for index in range(2)]
    yield made
    for port in made:
        port.close()


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture(params=["events", "polling"])
def waiting(request, ports):
    return waiter(request.param, ports)


def test_completions_come_with_their_port(waiting, ports):
    """What completed on any port is returned at once, with the index of the port, once."""
    ports[1].complete(DONE)
    ports[1].complete(DONE)
    assert waiting.wait(10.0).completions == [(1, DONE), (1, DONE)]
    assert waiting.wait(0.0).completions == []


def test_a_wait_ends_when_something_happens(waiting, ports):
    """A completion of another thread ends a wait that has begun, one without end as well."""
    threading.Timer(0.02, ports[0].complete, [DONE]).start()
    assert waiting.wait(math.inf).completions == [(0, DONE)]


@pytest.mark.parametrize("timeout_s", [-1.0, 0.0, 0.02])
def test_a_wait_ends_with_its_time(waiting, timeout_s):
    """Nothing is returned when nothing happens, not before the time is up."""
    began = time.monotonic()
    assert waiting.wait(timeout_s) == NOTHING
    assert time.monotonic() - began >= timeout_s


def test_events_and_other_descriptors_are_seen(waiting, ports, pipe):
    """A port's event and a watched descriptor are reported, the latter until it is read or no longer watched."""
    waiting.watch(pipe[0])
    ports[1].raise_event("PORT_ERR")
    os.write(pipe[1], b"x")
    assert waiting.wait(10.0) == Ready([], [PortEvent("port1", "PORT_ERR")], [pipe[0]])
    assert waiting.wait(0.0) == Ready([], [], [pipe[0]])
    waiting.unwatch(pipe[0])
    assert waiting.wait(0.0) == NOTHING


def test_what_was_polled_can_be_waited_for_later(ports):
    """Polling consumes no notifications, so that a later wait misses nothing."""
    polling, sleeping = BusyPolled(ports), EventDriven(ports)
    ports[0].complete(DONE)
    assert polling.wait(0.0).completions == [(0, DONE)]
    ports[0].complete(DONE)
    assert sleeping.wait(10.0).completions == [(0, DONE)]


def test_a_busy_port_does_not_hide_events(ports):
    """A polling waiter that always finds completions still polls events regularly."""
    polling = BusyPolled(ports, spins_per_look=10)
    ports[1].raise_event("DEVICE_FATAL")
    found = []
    for _ in range(10):
        ports[0].complete(DONE)
        found += polling.wait(10.0).events
    assert found == [PortEvent("port1", "DEVICE_FATAL")]


def test_polling_reads_the_clock_at_every_spin(ports):
    """A clock that only moves when it is read, as virtual time does, still ends the wait."""
    reads = iter(range(1000))
    assert BusyPolled(ports, clock_s=lambda: next(reads) / 10).wait(5.0) == NOTHING


def test_an_unknown_mode_is_refused(ports):
    """The error names the modes there are."""
    with pytest.raises(UsageError, match=r"'fast'.*events or polling"):
        waiter("fast", ports)
