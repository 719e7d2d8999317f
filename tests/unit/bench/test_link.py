"""The raw transfer, over the loopback transport."""

import ctypes

import pytest

from c4bench.errors import UnhealthyError
from c4bench.verbs.transport import PATIENT, Remote
from c4bench.verbs.waiting import waiter
from c4bench.workload.link import Link, send
from tools.loopback import LoopbackPort, Network

SIZE = 4096


class Counting:
    """A connection that knows how many of its writes are under way."""

    def __init__(self, connection, port):
        self.connection, self.port = connection, port
        self.writes = self.most = 0

    def write(self, *arguments, **rest):
        self.writes += 1
        self.connection.write(*arguments, **rest)
        self.most = max(self.most, len(self.port._completions))


@pytest.fixture
def ends():
    """Two connected ends: the sending one's connection and port, local and remote place, the two buffers, the net."""
    network = Network()
    ports = [LoopbackPort(network) for _ in range(2)]
    buffers = [ctypes.create_string_buffer(bytes(range(1, 251)) * 16, SIZE), ctypes.create_string_buffer(SIZE)]
    places = []
    for port, buffer in zip(ports, buffers, strict=True):
        address = ctypes.addressof(buffer)
        places.append((address, port.register(address, SIZE).rkey))
    connections = [port.connection(PATIENT, 16, 1) for port in ports]
    for own, far in (connections, connections[::-1]):
        own.connect(Remote("::1", far.qp_num))
    yield Counting(connections[0], ports[0]), ports[0], *places, *buffers, network
    for port in ports:
        port.close()


def test_every_message_is_written_and_waited_for(ends):
    """The bytes are there, in so many writes, never more than the window unacknowledged, and the span is in order."""
    connection, port, local, remote, source, target, _ = ends
    began, ended = send(connection, waiter("events", [port]), local, remote, SIZE, messages=50, window=7)
    assert target.raw == source.raw
    assert connection.writes == 50
    assert connection.most == 7
    assert began < ended


def test_a_write_that_fails_ends_the_transfer(ends):
    """A dead far end is an error with the transport's status, not a bandwidth."""
    connection, port, local, remote, *_, network = ends
    network.dead.update(network.connections)
    with pytest.raises(UnhealthyError, match="RETRY_EXC_ERR"):
        send(connection, waiter("events", [port]), local, remote, SIZE, messages=3, window=2)


def test_large_messages_fill_a_window_and_small_ones_are_bounded():
    """However large, a message is sent often enough to be pipelined; however small, not for ever."""
    link = Link(sizes_bytes=(), total_bytes=1 << 20, window=16, most_messages=100)
    assert [link.messages(size) for size in (1 << 24, 1 << 15, 64)] == [16, 32, 100]
