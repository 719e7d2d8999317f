"""Packet capture: recorded packets, and packets on the loopback interface."""

import socket

import pytest

from c4bench.errors import C4Error
from c4bench.verbs.packet_capture import PacketCapture, Sent, parse
from c4bench.verbs.transport import Remote

# A zero-byte RDMA write by rxe on Linux 6.1 with flow label 0x123, from its IPv4 header on.
RECORDED = bytes.fromhex(
    "4500003cb51540000111da220a000001e0000078c12312b7002800000a00ffff"
    "00000011800000000000000000000000000000000000000018bdde2a"
)


def test_a_recorded_packet_is_read():
    """Addresses, source port, destination QP, opcode and traffic class of a real packet are read."""
    assert parse(RECORDED) == Sent("10.0.0.1", "224.0.0.120", 0xC123, 17, 10, 0)
    assert parse(b"\x45\x6a" + RECORDED[2:]).traffic_class == 0x6A


def test_ipv6_is_read():
    """The same behind an IPv6 header."""
    addresses = socket.inet_pton(socket.AF_INET6, "fd00::1") + socket.inet_pton(socket.AF_INET6, "fd00::2")
    header = bytes.fromhex("66a1234500281140") + addresses
    assert parse(header + RECORDED[20:]) == Sent("fd00::1", "fd00::2", 0xC123, 17, 10, 0x6A)


@pytest.mark.parametrize(
    "data", [b"", RECORDED[:30], RECORDED[:9] + b"\x06" + RECORDED[10:], RECORDED[:22] + b"\x12\xb6" + RECORDED[24:]]
)
def test_anything_else_is_left_out(data):
    """Empty and truncated data, TCP and other destination ports are not RoCE packets."""
    assert parse(data) is None


def test_what_leaves_an_interface_is_seen():
    """A packet sent on an interface is seen once, with the port it was sent from; not one to that QP of another NIC."""
    try:
        capture = PacketCapture("lo")
    except C4Error as error:
        pytest.skip(f"no-capture: {error}")
    datagram = socket.AF_INET, socket.SOCK_DGRAM
    far = Remote("::ffff:127.0.0.1", 17)
    with capture, socket.socket(*datagram) as sender, socket.socket(*datagram) as other:
        for used, host in ((other, "127.0.0.2"), (sender, "127.0.0.1")):
            used.bind(("127.0.0.1", 0))
            used.sendto(RECORDED[28:], (host, 4791))
        assert capture.source_ports(far, 1.0) == {sender.getsockname()[1]}
        assert capture.source_ports(far, 0.01) == set()


def test_a_missing_interface_is_reported():
    """An interface that is not there is an error that names it."""
    with pytest.raises(C4Error, match="nosuch0"):
        PacketCapture("nosuch0")
