"""Probes against the loopback interface and recorded answers."""

import socket
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.errors import C4Error
from c4bench.model.fabric import HopAnswer, HopProbe, Nic
from c4bench.verbs import probe
from c4bench.verbs.probe import CLOSED_PORT, IcmpError, incoming_interface, parse_error, send_bursts, send_probes

LOOPBACK = Nic("h0", 0, "rxe0", "lo", "127.0.0.1", 1e10)


def error(origin, kind, code, offender, extension_at=0, flags=0):
    """The control messages with which Linux delivers an ICMP error."""
    head = struct.pack("=IBBBBIHBx", 113, origin, kind, code, 0, 0, extension_at, flags)
    if ":" in offender:
        sender = struct.pack("=HHI", socket.AF_INET6, 0, 0) + socket.inet_pton(socket.AF_INET6, offender) + bytes(4)
        return [(socket.IPPROTO_IPV6, 25, head + sender)]
    sender = struct.pack("=HH", socket.AF_INET, 0) + socket.inet_aton(offender) + bytes(8)
    return [(socket.IPPROTO_IP, 2, struct.pack("=i", 61)), (socket.IPPROTO_IP, 11, head + sender)]


def test_answers_tell_expiry_from_refusal():
    """Time Exceeded and Unreachable are told apart, and a local error is no answer."""
    assert parse_error(error(2, 11, 0, "172.16.0.2")) == IcmpError("172.16.0.2", expired=True)
    assert parse_error(error(2, 3, 1, "172.16.0.2")) == IcmpError("172.16.0.2", expired=False)
    assert parse_error(error(3, 3, 0, "fd00::2")) == IcmpError("fd00::2", expired=True)
    assert parse_error(error(1, 0, 0, "0.0.0.0")) is None
    assert parse_error([]) is None


@pytest.mark.parametrize("to_port", [4791, CLOSED_PORT])
def test_each_probe_has_the_answer_of_its_destination(to_port):
    """On the loopback interface each destination refuses the probe itself, and the answer comes with its own TTL."""
    probes = [HopProbe(f"127.0.0.{host}", port, 3) for host in range(1, 9) for port in range(50000, 50032)]
    answers = send_probes(LOOPBACK, probes, 0.5, to_port=to_port)
    assert answers == [HopAnswer(probe.destination, 64) for probe in probes]


def test_ipv6_is_answered_alike():
    """Probes of IPv6 NICs are answered as those of IPv4 NICs."""
    nic = Nic("h0", 0, "rxe0", "lo", "::1", 1e10)
    assert send_probes(nic, [HopProbe("::1", 50000, 3)], 0.5) == [HopAnswer("::1", 64)]


def test_silence_is_an_empty_answer():
    """A probe whose destination swallows it has an empty answer after the timeout; others have theirs."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
        sink.bind(("127.0.0.1", 4791))
        began = time.monotonic()
        answers = send_probes(LOOPBACK, [HopProbe(f"127.0.0.{host}", 50000, 3) for host in (1, 2)], 0.2)
        assert answers == [HopAnswer(), HopAnswer("127.0.0.2", 64)]
        assert time.monotonic() - began >= 0.2


def test_a_lost_probe_is_repeated(monkeypatch):
    """A probe whose first answer is lost is answered at the second attempt."""
    lost = []

    def lossy(sock, mark, read=probe._read):
        answer = read(sock, mark)
        if answer is not None and answer[0] not in lost:
            lost.append(answer[0])
            return None
        return answer

    monkeypatch.setattr(probe, "_read", lossy)
    probes = [HopProbe("127.0.0.1", port, 3) for port in (50000, 50001)]
    assert send_probes(LOOPBACK, probes, 0.4) == [HopAnswer("127.0.0.1", 64)] * 2
    assert sorted(lost) == [("127.0.0.1", 50000), ("127.0.0.1", 50001)]


def test_an_answer_to_an_earlier_call_is_discarded(monkeypatch):
    """An answer that quotes the data of another call is no answer; one that quotes no data may be."""
    read, probes = probe._read, [HopProbe("127.0.0.1", 50000, 3)]
    monkeypatch.setattr(probe, "_read", lambda sock, _: read(sock, b"another call"))
    assert send_probes(LOOPBACK, probes, 0.05) == [HopAnswer()]


def test_two_probes_of_one_flow_are_refused():
    """Answers to two probes with the same destination and source port could not be told apart."""
    with pytest.raises(ValueError, match="same destination and source port"):
        send_probes(LOOPBACK, [HopProbe("127.0.0.1", 50000, ttl) for ttl in (1, 2)], 0.1)


def test_a_port_in_use_is_reported():
    """A source port that cannot be bound is an error that names the NIC and the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 50001))
        with pytest.raises(C4Error, match=r"h0/0 .*port 50001"):
            send_probes(LOOPBACK, [HopProbe("127.0.0.1", port, 3) for port in (50000, 50001)], 0.1)


def test_bursts_are_as_many_as_asked_for_and_no_faster():
    """So many packets come from each port, and they take as long as the rate says."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
        sink.bind(("127.0.0.1", 4791))
        began = time.monotonic()
        send_bursts(LOOPBACK, "127.0.0.1", [(50000, 64, 30), (50001, 64, 20)], rate_pps=1000.0)
        assert time.monotonic() - began > 0.04
        ports = [sink.recvfrom(100)[1][1] for _ in range(50)]
    assert (ports.count(50000), ports.count(50001)) == (30, 20)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("traffic_class", [0, 26 << 2])
def test_probes_and_bursts_have_the_traffic_class(address, traffic_class):
    """All packets to a NIC carry the traffic class asked for, in IPv4 and in IPv6."""
    nic = Nic("h0", 0, "rxe0", "lo", address, 1e10)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sink:
        level = socket.IPPROTO_IPV6 if ":" in address else socket.IPPROTO_IP
        sink.setsockopt(level, socket.IPV6_RECVTCLASS if ":" in address else socket.IP_RECVTOS, 1)
        sink.bind((address, 4791))
        send_probes(nic, [HopProbe(address, 50000, 3)], 0.01, traffic_class=traffic_class)
        send_bursts(nic, address, [(50001, 64, 2)], 1e4, traffic_class)
        seen = [sink.recvmsg(100, 100)[1] for _ in range(probe.ATTEMPTS + 2)]
    classes = [data[0] for ancillary in seen for _, _, data in ancillary]
    assert classes == [traffic_class] * len(seen)


def test_probes_for_queue_pairs_look_like_their_packets():
    """Each names its queue pair in a RoCE header and has a number of its own; others have no such header."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
        sink.bind(("127.0.0.1", 4791))
        probes = [HopProbe("127.0.0.1", port, 3) for port in (50000, 50001)]
        send_probes(LOOPBACK, probes, 0.01, qps=[17, 0xC4B000])
        packets = [sink.recvfrom(100) for _ in range(2 * probe.ATTEMPTS)]
        send_probes(LOOPBACK, probes[:1], 0.01)
        plain = sink.recv(100)
    # Base transport header (IBTA volume 1, 9.2): opcode, flags, partition key, destination QP, packet sequence number.
    headers = {(data[0], data[2:4], int.from_bytes(data[5:8]), sender[1]) for data, sender in packets}
    assert headers == {(0x0A, b"\xff\xff", 17, 50000), (0x0A, b"\xff\xff", 0xC4B000, 50001)}
    assert len({data[9:12] for data, _ in packets}) > 1
    assert plain.startswith(b"c4bench probe")


def test_an_answer_that_quotes_a_roce_packet_is_read():
    """Probes for queue pairs are answered like others."""
    probes = [HopProbe(f"127.0.0.{host}", 50000, 3) for host in range(1, 4)]
    assert send_probes(LOOPBACK, probes, 0.5, qps=[17, 18, 19]) == [HopAnswer(one.destination, 64) for one in probes]


def extension(*objects):
    """An extension structure (RFC 4884) of objects: class, C-type and body."""
    packed = [struct.pack("!HBB", 4 + len(body), kind, form) + body for kind, form, body in objects]
    return struct.pack("!BxH", 0x20, 0) + b"".join(packed)


def interface(index=None, address=None, name=None, mtu=None, role=0):
    """An interface information object (RFC 5837), with its parts in the standard's order."""
    form, body = role << 6, b""
    if index is not None:
        form, body = form | 8, body + struct.pack("!I", index)
    if address is not None:
        form, body = form | 4, body + struct.pack("!Hxx", 1) + socket.inet_aton(address)
    if name is not None:
        padded = name.encode().ljust(-(-(len(name) + 1) // 4) * 4 - 1, b"\0")
        form, body = form | 2, body + bytes([len(padded) + 1]) + padded
    if mtu is not None:
        form, body = form | 1, body + struct.pack("!I", mtu)
    return 2, form, body


@pytest.mark.parametrize(
    ("objects", "hop"),
    [
        ([interface(7, "172.16.0.9", "Ethernet4", 9100)], "172.16.0.9"),
        ([interface(7, None, "Ethernet4", 9100)], "10.0.0.1%Ethernet4"),
        ([interface(7)], "10.0.0.1%7"),
        ([(1, 1, b"MPLS"), interface(None, None, "swp12")], "10.0.0.1%swp12"),
        ([interface(9, None, "out0", role=2), interface(7, None, "in0")], "10.0.0.1%in0"),
        ([interface(9, None, "out0", role=2)], "10.0.0.1"),
        ([], "10.0.0.1"),
    ],
)
def test_the_incoming_interface_names_the_link(objects, hop):
    """A link is called by its own address, or by the switch's and the interface where it has none of its own."""
    assert incoming_interface(extension(*objects)).hop("10.0.0.1") == hop


@given(st.binary(max_size=80))
def test_any_bytes_are_an_extension_or_none(rest):
    """What follows a valid header may be anything; nothing is raised, and a hop is always named."""
    for start in (b"", struct.pack("!BxH", 0x20, 0), extension(interface(7))[:6]):
        assert incoming_interface(start + rest).hop("10.0.0.1")


def test_answers_with_an_extension_are_read():
    """An answer that fills what it quotes with zeros and adds an extension is taken, unless Linux calls it invalid."""
    quoted = b"mark".ljust(100, b"\0") + extension(interface(3, None, "swp1"))

    class Queue:
        def __init__(self, flags):
            self.left = [(quoted, error(2, 11, 0, "10.0.0.1", 100, flags), 0, ("10.9.0.1", 4791))]

        def recvmsg(self, *_):
            if not self.left:
                raise BlockingIOError
            return self.left.pop()

        def getsockname(self):
            return "10.8.0.1", 50000

    assert probe._read(Queue(0), b"mark")[2] == "10.0.0.1%swp1"
    assert probe._read(Queue(1), b"mark")[2] == "10.0.0.1"
    assert probe._read(Queue(0), b"other") is None
