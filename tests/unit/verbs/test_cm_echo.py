"""Echoes by the connection manager, against a kernel that follows include/uapi/rdma/rdma_user_cm.h."""

import ctypes
import os
import struct
from types import SimpleNamespace

import pytest

from c4bench.errors import UnhealthyError
from c4bench.verbs import cm_echo
from c4bench.verbs.cm_echo import CmEcho

CREATE, DESTROY, RESOLVE_IP, RESOLVE_ROUTE, CONNECT, GET_EVENT, SET_OPTION = 0, 1, 3, 4, 6, 12, 14
ADDRESS_RESOLVED, ADDRESS_ERROR, ROUTE_RESOLVED, REJECTED = 0, 1, 2, 8


class Kernel:
    """A connection manager whose peer rejects the requests with these tags; the queue of events is a pipe."""

    def __init__(self, rejects=(), unresolved=()):
        self.rejects, self.unresolved = set(rejects), set(unresolved)
        self.reader, self.writer = os.pipe()
        self.tags, self.events, self.options, self.destroyed, self.addresses = {}, [], [], [], []

    def open(self, *_):
        return self.reader

    def close(self, descriptor):
        os.close(descriptor)
        os.close(self.writer)

    def write(self, _, text):
        command, length, _ = struct.unpack_from("=IHH", text)
        body = text[8:]
        assert len(body) == length
        getattr(self, f"on_{command}")(body)

    def queue(self, identifier, event):
        self.events.append((self.tags[identifier], identifier, event, 0))
        os.write(self.writer, b"e")

    def on_0(self, body):
        tag, response, space, kind = struct.unpack("=QQHB5x", body)
        assert (space, kind) == (0x106, 2)
        assert tag, "the kernel drops the events of tag 0"
        identifier = len(self.tags)
        self.tags[identifier] = tag
        ctypes.memmove(response, struct.pack("=I", identifier), 4)

    def on_14(self, body):
        value, identifier, level, name, length = struct.unpack("=QIIII", body)
        assert (level, name, length) == (0, 0, 1)
        self.options.append((identifier, ctypes.c_uint8.from_address(value).value))

    def on_3(self, body):
        source, target, identifier, _ = struct.unpack("=28s28sII", body)
        self.addresses.append((source, target))
        resolved = self.tags[identifier] not in self.unresolved
        self.queue(identifier, ADDRESS_RESOLVED if resolved else ADDRESS_ERROR)

    def on_4(self, body):
        self.queue(struct.unpack("=II", body)[0], ROUTE_RESOLVED)

    def on_6(self, body):
        assert len(body) == 272 + 16
        (identifier,) = struct.unpack_from("=I", body, 272)
        if self.tags[identifier] in self.rejects:
            self.queue(identifier, REJECTED)

    def on_1(self, body):
        self.destroyed.append(struct.unpack("=QII", body)[1])

    def on_12(self, body):
        os.read(self.reader, 1)
        ctypes.memmove(struct.unpack("=Q", body)[0], struct.pack("=QIII", *self.events.pop(0)), 20)


@pytest.fixture
def echoes(monkeypatch):
    """Probes over a kernel."""

    def over(kernel, source="10.0.0.1", peer="10.1.0.1"):
        flags = {name: getattr(os, name) for name in ("O_RDWR", "O_NONBLOCK", "O_CLOEXEC")}
        calls = SimpleNamespace(open=kernel.open, close=kernel.close, write=kernel.write, **flags)
        monkeypatch.setattr(cm_echo, "os", calls)
        return CmEcho(source, peer, 0x68)

    return over


def test_a_rejection_is_an_echo(echoes):
    """Each probe has the traffic class of the data; one without a rejection, or whose peer is unknown, is lost."""
    kernel = Kernel(rejects={1, 4}, unresolved={3})
    with echoes(kernel) as probes:
        for number in range(4):
            probes.send(number)
        probes.receive(0.01, lambda: len(probes.arrived_s) == 2)
    assert set(probes.sent_s) == {0, 1, 2, 3}
    assert list(probes.arrived_s) == [0, 3]
    assert all(probes.arrived_s[number] >= probes.sent_s[number] for number in (0, 3))
    assert kernel.options == [(identifier, 0x68) for identifier in range(4)]
    assert kernel.destroyed == [0, 2, 3], "what is over is given back at once"


def test_addresses_of_both_kinds_are_sent_as_the_kernel_has_them(echoes):
    """A sockaddr_in or sockaddr_in6, in network byte order; the service is that of a port where nobody listens."""
    with echoes(Kernel()) as probes:
        probes.send(0)
    kernel = Kernel()
    with echoes(kernel, "fd00::1", "fd00::2") as probes:
        probes.send(0)
    ((source, target),) = kernel.addresses
    assert source[:8] == struct.pack("=H", 10) + bytes(6)
    assert target[2:4] == (33434).to_bytes(2, "big")
    assert target[8:24] == bytes.fromhex("fd00" + "00" * 13 + "02")


def test_a_link_that_is_down_loses_probes(echoes):
    """The kernel's refusal is a loss, not an error."""
    kernel = Kernel()

    def refuse(_):
        raise OSError(19, "No such device")

    kernel.on_3 = refuse
    with echoes(kernel) as probes:
        probes.send(0)
        assert probes.sent_s
        assert not probes.arrived_s


def test_without_the_connection_manager_the_module_is_named(tmp_path):
    """A host without rdma_ucm says what to load; an address that is none is the inventory's mistake."""
    with pytest.raises(UnhealthyError, match="No such file or directory; load the kernel module rdma_ucm"):
        CmEcho("10.0.0.1", "10.1.0.1", 0, path=tmp_path / "rdma_cm")
    with pytest.raises(UnhealthyError, match="'nowhere' is no IP address"):
        CmEcho("nowhere", "10.1.0.1", 0)
