"""The transport within one process behaves as a reliable connection does."""

import ctypes

import pytest

from c4bench.errors import C4Error
from c4bench.verbs.errors import VerbsError
from c4bench.verbs.transport import BRISK, Completion, Remote
from tools.loopback import LoopbackPort, Network


class Side:
    """A port with a connection and 64 bytes of registered memory."""

    def __init__(self, network):
        self.port = LoopbackPort(network)
        self.memory = ctypes.create_string_buffer(64)
        self.address = ctypes.addressof(self.memory)
        self.region = self.port.register(self.address, 64)
        self.connection = self.port.connection(BRISK, 4, 4)


@pytest.fixture
def sides():
    network = Network()
    near, far = Side(network), Side(network)
    near.connection.connect(Remote("::1", far.connection.qp_num))
    far.connection.connect(Remote("::1", near.connection.qp_num), receives=2)
    yield near, far
    near.port.close()
    far.port.close()


def write(near, far, length=8, immediate=None, **changes):
    local, remote = (near.address, near.region.lkey), (far.address, far.region.rkey)
    near.connection.write(
        changes.get("local", local), changes.get("remote", remote), length, immediate=immediate, signaled=True
    )
    return [completion.status for completion in near.port.completions() if not completion.received]


def test_a_write_copies_and_completes_at_both_ends(sides):
    """The bytes have arrived when the write returns; the far end gets a completion only with an immediate."""
    near, far = sides
    near.memory.value = b"payload"
    assert write(near, far) == [""]
    assert (far.memory.value, far.port.completions()) == (b"payload", [])
    assert write(near, far, immediate=5) == [""]
    assert far.port.completions() == [Completion(far.connection.qp_num, 0, "", received=True, immediate=5)]
    assert far.connection.receives == 1


def test_memory_that_is_not_registered_is_not_touched(sides):
    """A wrong key, or a range that leaves the region, fails as on a NIC and copies nothing."""
    near, far = sides
    near.memory.value = b"payload"
    assert write(near, far, local=(near.address, 99)) == ["LOC_PROT_ERR"]
    assert write(near, far, remote=(far.address, near.region.rkey)) == ["REM_ACCESS_ERR"]
    assert write(near, far, remote=(far.address + 60, far.region.rkey)) == ["REM_ACCESS_ERR"]
    far.region.close()
    assert write(near, far) == ["REM_ACCESS_ERR"]
    assert far.memory.value == b""
    assert (near.port.regions, far.port.regions) == (1, 0)


def test_a_peer_that_is_gone_does_not_answer(sides):
    """Writes to a dead QP, a closed connection and a closed port run out of retries."""
    near, far = sides
    near.port.network.dead.add(far.connection.qp_num)
    assert write(near, far) == ["RETRY_EXC_ERR"]
    near.port.network.dead.clear()
    assert write(near, far, length=0) == [""]
    far.connection.close()
    assert write(near, far, length=0) == ["RETRY_EXC_ERR"]


def test_nothing_comes_from_a_port_that_is_closed(sides):
    """Reconnecting drops unacknowledged writes, since their memory may be freed."""
    near, far = sides
    near.memory.value = b"payload"
    near.port.network.delivery = lambda _, __: "lost"
    assert write(near, far) == []
    near.port.close()
    near.port.network.delivery = lambda _, __: ""
    assert not near.connection.retry(now_s=float("inf"))
    assert far.memory.value == b""


def test_a_message_without_a_receive_is_an_error(sides):
    """More messages than receives, or more receives than the queue holds, are noticed."""
    near, far = sides
    write(near, far, immediate=1)
    write(near, far, immediate=2)
    with pytest.raises(C4Error, match="no receive was posted"):
        write(near, far, immediate=3)
    for _ in range(4):
        far.connection.post_receive()
    with pytest.raises(VerbsError, match="more than 4 receives"):
        far.connection.post_receive()
